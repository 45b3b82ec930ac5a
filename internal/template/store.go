package template

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// Errors that callers test with errors.Is.
var (
	// ErrMissing: there is no template of that key. The text says why if there
	// was one that had to be taken away.
	ErrMissing = errors.New("there is no such template")
	// ErrBusy: another process makes or removes this template right now.
	ErrBusy = errors.New("the template is being worked on")
)

// Store is the templates in one directory, those of one backend. Its methods
// may be called concurrently.
type Store struct {
	Dir    string // absolute; made when needed
	Keeper backend.StateKeeper
	// CapBytes is what Evict leaves on the disk at most. 0: no limit.
	CapBytes int64
	Logger   *slog.Logger // nil: silent
}

// Description says what a template is of. Everything but Key is for people.
type Description struct {
	Key       string `json:"key"` // hex, at least 16 digits: a digest of all that must agree
	Backend   string `json:"backend"`
	Image     string `json:"image"`
	Arch      string `json:"arch,omitempty"`
	CPUs      int    `json:"cpus"`
	MemoryMiB int64  `json:"memory_mib"`
	// DiskSize is that of the VM's disk in bytes, 0 in records that do not say;
	// Make fills it in.
	DiskSize int64 `json:"disk_size,omitempty"`
	// Services run in it, for people.
	Services []string `json:"services,omitempty"`
}

// Template is a template in force.
type Template struct {
	Description
	Created time.Time
	State   string             // directory of the saved state, for Spec.From
	Saved   backend.SavedState // as the backend found it
}

// format is the version of template.json.
const format = 1

// record is template.json.
type record struct {
	Format int `json:"format"`
	Description
	State   string    `json:"state"` // name of a directory beside the record
	Created time.Time `json:"created"`
}

const (
	recordName  = "template.json"
	usedName    = "used"
	statePrefix = "state-"
	lockDir     = ".locks"
	keyDigits   = 16
)

func (s *Store) log() *slog.Logger {
	if s.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Logger
}

// dirOf is the directory of a key.
func (s *Store) dirOf(key string) (string, error) {
	if len(key) < keyDigits || strings.Trim(key, "0123456789abcdef") != "" {
		return "", fault.New(fault.InvalidArgument, "%.80q is not the key of a template", key).
			Next("run `sandboxforge template list` for the keys there are")
	}
	return filepath.Join(s.Dir, key[:keyDigits]), nil
}

// Find returns the template of a key, looked at by the backend, and marks it
// used. If there is none, or one that the backend finds unfit, the error is
// ErrMissing; an unfit one is out of force afterwards, and the error says what
// was wrong with it. Any other error says nothing about the template. The first
// look since the host's boot reads the whole state.
func (s *Store) Find(ctx context.Context, key string) (*Template, error) {
	t, err := s.look(ctx, key, slog.LevelWarn)
	if err == nil {
		s.touch(filepath.Dir(t.State))
	}
	return t, err
}

// look is Find without a trace of use. That a template is unfit is logged on
// the given level.
func (s *Store) look(ctx context.Context, key string, level slog.Level) (*Template, error) {
	dir, err := s.dirOf(key)
	if err != nil {
		return nil, err
	}
	r, err := readRecord(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, ErrMissing
	case err != nil:
		return nil, s.unfit(ctx, level, key, "", fmt.Sprintf("its record cannot be read: %v", err))
	case r.Key != key:
		return nil, s.unfit(ctx, level, key, r.State, "its record is of another key")
	}
	state := filepath.Join(dir, r.State)
	saved, err := s.Keeper.CheckState(ctx, state)
	if errors.Is(err, backend.ErrStateUnfit) {
		f := fault.From(err)
		why := f.Message
		if f.Cause != "" {
			why += ": " + f.Cause
		}
		return nil, s.unfit(ctx, level, key, r.State, why)
	}
	if err != nil {
		return nil, err
	}
	return &Template{Description: r.Description, Created: r.Created, State: state, Saved: saved}, nil
}

// InForce reports whether a state is the one that its template names now. It
// reads one small file.
func (s *Store) InForce(state string) bool {
	r, err := readRecord(filepath.Dir(state))
	return err == nil && r.State == filepath.Base(state)
}

// Discard takes a template out of force whose clones do not come up, and
// removes its state as far as nobody needs it. That another took its place
// meanwhile, or is being made, is success.
func (s *Store) Discard(ctx context.Context, t *Template, reason string) error {
	err := s.unfit(ctx, slog.LevelWarn, t.Key, filepath.Base(t.State), reason)
	if errors.Is(err, ErrMissing) {
		return nil
	}
	return err
}

// unfit takes the state called state ("": whatever the record says) out of
// force. Its error is ErrMissing with the reason.
func (s *Store) unfit(ctx context.Context, level slog.Level, key, state, reason string) error {
	missing := fmt.Errorf("%w: the one there was is unfit: %s", ErrMissing, reason)
	dir, err := s.dirOf(key)
	if err != nil {
		return err
	}
	unlock, err := s.tryLock(key)
	if errors.Is(err, ErrBusy) {
		return missing // whoever holds the lock puts it in order
	}
	if err != nil {
		return err
	}
	defer unlock()
	if r, err := readRecord(dir); err == nil && state != "" && r.State != state {
		return missing // another is in force by now
	} else if errors.Is(err, fs.ErrNotExist) {
		return missing
	}
	s.log().Log(ctx, level, "template taken out of force", "key", key[:keyDigits], "reason", reason)
	if err := os.Remove(filepath.Join(dir, recordName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(err, fault.Internal, "an unfit template cannot be removed")
	}
	s.clear(ctx, dir)
	return missing
}

// clear removes, under the key's lock, the states that no record names and
// nobody needs, and what else a killed maker left.
func (s *Store) clear(ctx context.Context, dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // nothing there
	}
	r, err := readRecord(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return // nobody knows which one is in force
	}
	for _, e := range entries {
		switch name := e.Name(); {
		case e.IsDir() && name != r.State:
			err := s.Keeper.RemoveState(ctx, filepath.Join(dir, name))
			if err != nil && !errors.Is(err, backend.ErrStateInUse) {
				s.log().Warn("a template's leftover stays", "dir", filepath.Join(dir, name), "error", err)
			}
		case strings.HasPrefix(name, recordName+"."): // a record that was never in force
			os.Remove(filepath.Join(dir, name))
		}
	}
	notes, _ := filepath.Glob(s.lockPath(filepath.Base(dir)) + noteSuffix + "*") // the pattern is good
	for _, n := range notes {
		os.Remove(n)
	}
	if r.State == "" {
		os.Remove(filepath.Join(dir, usedName))
		os.Remove(dir) // if it is empty
	}
}

// Sweep removes what killed makers left and what nobody needs any more. Keys
// that somebody works on are left alone.
func (s *Store) Sweep(ctx context.Context) error {
	keys, err := s.keys()
	for _, key := range keys {
		unlock, lerr := s.tryLock(key)
		if lerr != nil {
			continue
		}
		s.clear(ctx, filepath.Join(s.Dir, key))
		unlock()
	}
	return err
}

// keys lists the directories of templates, by their 16 digits.
func (s *Store) keys() ([]string, error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "the templates cannot be listed")
	}
	var keys []string
	for _, e := range entries {
		if _, err := s.dirOf(e.Name()); err == nil && e.IsDir() && len(e.Name()) == keyDigits {
			keys = append(keys, e.Name())
		}
	}
	return keys, nil
}

func (s *Store) touch(dir string) {
	path := filepath.Join(dir, usedName)
	now := time.Now()
	err := os.Chtimes(path, now, now)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.WriteFile(path, nil, 0o600)
	}
	if err != nil {
		s.log().Warn("use of a template not recorded", "error", err)
	}
}

func readRecord(dir string) (record, error) {
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return record{}, err
	}
	switch {
	case r.Format != format:
		return record{}, fmt.Errorf("it has format %d, this version knows %d", r.Format, format)
	case !strings.HasPrefix(r.State, statePrefix) || filepath.Base(r.State) != r.State:
		return record{}, fmt.Errorf("it names a state %q", r.State)
	}
	return r, nil
}

func newStateName() string {
	b := make([]byte, 4)
	rand.Read(b) // never fails
	return statePrefix + hex.EncodeToString(b)
}
