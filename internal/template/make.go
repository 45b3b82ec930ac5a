package template

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// Build saves a state into dir, an absolute path that does not exist, and
// returns when the state is proven good. It tells p what it does. When it
// fails nobody may use dir any more.
type Build func(ctx context.Context, dir string, p backend.Progress) error

// Make returns the template of d.Key, and makes it with build if it is missing;
// made says which. Of any number of callers in any number of processes one
// makes it at a time: the others wait, are told what the maker does, and find
// the result, or become the maker when the first fails or dies.
//
// A build's error is returned as it is. When ctx ends, a waiting caller leaves,
// and a maker's build is expected to end; nothing of it is in force then.
func (s *Store) Make(ctx context.Context, d Description, p backend.Progress, build Build) (t *Template, made bool, err error) {
	dir, err := s.dirOf(d.Key)
	if err != nil {
		return nil, false, err
	}
	unlock, err := s.lock(ctx, d.Key, p)
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	// Under the lock an unfit one cannot be taken out of force by Find: it is
	// replaced below.
	if t, err := s.look(ctx, d.Key, slog.LevelWarn); err == nil {
		s.touch(dir)
		return t, false, nil
	} else if !errors.Is(err, ErrMissing) {
		return nil, false, err
	} else if err != ErrMissing {
		s.log().Warn("template made anew", "key", d.Key[:keyDigits], "reason", err)
	}
	if err := os.Remove(filepath.Join(dir, recordName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, fault.Wrap(err, fault.Internal, "an unfit template cannot be replaced")
	}
	s.clear(ctx, dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, false, fault.Wrap(err, fault.Internal, "cannot create %s", dir).
			Next("make %s writable, or set SANDBOX_IMAGE_DIR to a directory that is", s.Dir)
	}
	doing := "making a template of the image " + d.Image
	p.Report("template", doing)
	note := s.newNote(d.Key, p, doing)
	defer note.remove()

	r := record{Format: format, Description: d, State: newStateName()}
	state := filepath.Join(dir, r.State)
	saved, err := s.build(ctx, state, note.report, build)
	if err == nil {
		r.Created, r.DiskSize = time.Now().UTC(), saved.DiskSize
		err = publish(dir, r)
	}
	if err != nil {
		// Whoever comes next finds and removes what cannot be removed now.
		s.clear(context.WithoutCancel(ctx), dir)
		return nil, false, err
	}
	s.touch(dir)
	s.log().Info("template made", "key", d.Key[:keyDigits], "image", d.Image, "memory_bytes", saved.MemoryBytes, "disk_bytes", saved.DiskBytes)
	return &Template{Description: r.Description, Created: r.Created, State: state, Saved: saved}, true, nil
}

func (s *Store) build(ctx context.Context, state string, p backend.Progress, build Build) (backend.SavedState, error) {
	if err := build(ctx, state, p); err != nil {
		return backend.SavedState{}, err
	}
	p.Report("template", "putting the template on the disk")
	if err := syncTree(state); err != nil {
		return backend.SavedState{}, fault.Wrap(err, fault.InsufficientDisk, "the template cannot be written to the disk").
			Next("free space on the disk of %s", s.Dir)
	}
	saved, err := s.Keeper.CheckState(ctx, state)
	if errors.Is(err, backend.ErrStateUnfit) {
		return saved, fault.Wrap(err, fault.BackendCommandFailed, "the template that was just made cannot be used")
	}
	return saved, err
}

// publish puts a state in force: its files are on the disk already.
func publish(dir string, r record) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	err = replace(filepath.Join(dir, recordName), b, true)
	if err == nil {
		// The directory's own entry too.
		err = errors.Join(syncPath(dir), syncPath(filepath.Dir(dir)))
	}
	if err != nil {
		return fault.Wrap(err, fault.Internal, "the template's record cannot be written")
	}
	return nil
}

// replace writes a file that is there whole or not at all; durable: also after
// the host crashed.
func replace(path string, b []byte, durable bool) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err == nil && durable {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// syncTree has the files of a directory written to the disk.
func syncTree(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		return syncPath(path)
	})
}

// note tells others what a maker does, and that it lives.
type note struct {
	s    *Store
	path string
	p    backend.Progress

	mu  sync.Mutex
	now making

	quit chan struct{}
	wg   sync.WaitGroup
}

// notePeriod is how often the note is rewritten; waiting callers read it more
// often.
const notePeriod = time.Second

// making is the note's text.
type making struct {
	PID     int       `json:"pid"`
	At      time.Time `json:"at"`
	Message string    `json:"message"`
}

// newNote starts a note. Remove it.
func (s *Store) newNote(key string, p backend.Progress, message string) *note {
	n := &note{s: s, path: s.lockPath(key) + noteSuffix, p: p, now: making{PID: os.Getpid(), Message: message}, quit: make(chan struct{})}
	n.write()
	n.wg.Go(func() {
		tick := time.NewTicker(notePeriod)
		defer tick.Stop()
		for {
			select {
			case <-n.quit:
				return
			case <-tick.C:
				n.write()
			}
		}
	})
	return n
}

func (n *note) report(stage, message string) {
	n.p.Report(stage, message)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.now.Message = message
}

func (n *note) write() {
	n.mu.Lock()
	n.now.At = time.Now().UTC()
	b, err := json.Marshal(n.now)
	n.mu.Unlock()
	if err == nil {
		err = replace(n.path, b, false)
	}
	if err != nil {
		n.s.log().Debug("those who wait for a template are not told", "error", err)
	}
}

func (n *note) remove() {
	close(n.quit)
	n.wg.Wait()
	os.Remove(n.path)
}

// readNote is what the maker of a key wrote last; false if there is none.
func (s *Store) readNote(key string) (making, bool) {
	var m making
	b, err := os.ReadFile(s.lockPath(key) + noteSuffix)
	return m, err == nil && json.Unmarshal(b, &m) == nil
}
