package template

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/host"
)

// UserLister is implemented by StateKeepers that can say who needs a state
// without trying to remove it.
type UserLister interface {
	// StateUsers returns the directories of the VMs and saved states that need
	// the state in dir.
	StateUsers(ctx context.Context, dir string) ([]string, error)
}

// Info is what List says of a template.
type Info struct {
	Description
	State    string    `json:"state"` // directory of the saved state
	Created  time.Time `json:"created"`
	LastUsed time.Time `json:"last_used"`
	Bytes    int64     `json:"bytes"` // on the host's disk
	Users    []string  `json:"users,omitempty"`
	// Retired: not in force any more, kept while VMs need its files.
	Retired bool `json:"retired,omitempty"`
}

// List returns the templates there are, the most recently used first, and the
// states of former ones that are still on the disk. It checks nothing.
func (s *Store) List(ctx context.Context) ([]Info, error) {
	keys, err := s.keys()
	if err != nil {
		return nil, err
	}
	var all []Info
	for _, key := range keys {
		dir := filepath.Join(s.Dir, key)
		r, _ := readRecord(dir) // an unreadable one names nothing
		_, made := s.readNote(key)
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // removed meanwhile
		}
		for _, e := range entries {
			if !e.IsDir() || !strings.HasPrefix(e.Name(), statePrefix) || made && e.Name() != r.State {
				continue
			}
			i := Info{State: filepath.Join(dir, e.Name()), Bytes: host.TreeAllocated(filepath.Join(dir, e.Name()))}
			if e.Name() == r.State {
				i.Description, i.Created, i.LastUsed = r.Description, r.Created, r.Created
				if st, err := os.Stat(filepath.Join(dir, usedName)); err == nil {
					i.LastUsed = st.ModTime().UTC()
				}
			} else {
				i.Key, i.Retired = key, true
				if st, err := e.Info(); err == nil {
					i.Created, i.LastUsed = st.ModTime().UTC(), st.ModTime().UTC()
				}
			}
			if u, ok := s.Keeper.(UserLister); ok {
				i.Users, _ = u.StateUsers(ctx, i.State)
			}
			all = append(all, i)
		}
	}
	slices.SortFunc(all, func(a, b Info) int { return b.LastUsed.Compare(a.LastUsed) })
	return all, ctx.Err()
}

// Remove removes the one template whose key begins with prefix. One that VMs
// need is refused with an *backend.InUseError in its chain and stays in force;
// one that is being made with ErrBusy.
func (s *Store) Remove(ctx context.Context, prefix string) (Info, error) {
	all, err := s.List(ctx)
	if err != nil {
		return Info{}, err
	}
	var found []Info
	for _, i := range all {
		if !i.Retired && prefix != "" && strings.HasPrefix(i.Key, prefix) {
			found = append(found, i)
		}
	}
	if len(found) != 1 {
		what := "template %q"
		if len(found) > 1 {
			what = "%q is the beginning of several"
		}
		return Info{}, fault.Wrap(ErrMissing, fault.InvalidArgument, what, prefix).
			Next("run `sandboxforge template list` for the keys there are")
	}
	return found[0], s.remove(ctx, found[0])
}

// inUse says who needs a template, by the names of VMs and snapshots instead of
// their directories.
func inUse(i Info, in *backend.InUseError) error {
	short := &backend.InUseError{Dir: i.Key[:keyDigits]}
	var vms []string
	snapshots := false
	for _, dir := range in.Users {
		name := filepath.Base(dir)
		if over := filepath.Base(filepath.Dir(dir)); strings.HasPrefix(over, "snap_") {
			name, snapshots = over, true
		} else {
			vms = append(vms, strings.TrimPrefix(name, "agent-"))
		}
		short.Users = append(short.Users, name)
	}
	f := fault.Wrap(short, fault.InvalidArgument, "the template cannot be removed").
		Because("VMs and snapshots that began in it need its memory and disk")
	if len(vms) > 0 {
		f.Next("run `sandboxforge destroy %s`, if they are no longer needed (`sandboxforge ps` shows them)", strings.Join(vms, " "))
	}
	if snapshots {
		f.Next("remove the snapshots with `sandboxforge snapshot rm`")
	}
	return f
}

func (s *Store) remove(ctx context.Context, i Info) error {
	unlock, err := s.tryLock(i.Key)
	if errors.Is(err, ErrBusy) {
		return fault.Wrap(err, fault.InvalidArgument, "the template %s is being made or removed", i.Key[:keyDigits]).
			Next("try again when that is done")
	}
	if err != nil {
		return err
	}
	defer unlock()
	dir := filepath.Dir(i.State)
	if !i.Retired && !s.InForce(i.State) {
		return nil // somebody else was first
	}
	// The state first: that it may go is the backend's decision. Who finds the
	// record until it is gone too finds its state unfit.
	if err := s.Keeper.RemoveState(ctx, i.State); err != nil {
		var in *backend.InUseError
		if errors.As(err, &in) {
			return inUse(i, in)
		}
		return err
	}
	if !i.Retired {
		if err := os.Remove(filepath.Join(dir, recordName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fault.Wrap(err, fault.Internal, "a template's record cannot be removed")
		}
	}
	s.clear(ctx, dir)
	return nil
}

// RemoveUnfit takes out of force what the backend finds unfit, and returns
// what that was. Whoever calls it expects some, so that the log is told on the
// level of a result.
func (s *Store) RemoveUnfit(ctx context.Context) (removed []Info, err error) {
	all, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, i := range all {
		if i.Retired {
			continue
		}
		if _, err := s.look(ctx, i.Key, slog.LevelInfo); err != nil && !errors.Is(err, ErrMissing) {
			return removed, err
		}
		if !s.InForce(i.State) {
			removed = append(removed, i)
		}
	}
	return removed, s.Sweep(ctx)
}

// Evict removes the least recently used templates until the rest fits into
// CapBytes, but never one that is in use, and not the one called keep. What
// does not fit all the same is said in the log.
func (s *Store) Evict(ctx context.Context, keep string) (removed []Info, err error) {
	if s.CapBytes <= 0 {
		return nil, nil
	}
	all, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	var total int64
	for _, i := range all {
		total += i.Bytes
	}
	for _, i := range slices.Backward(all) { // the least recently used first
		if total <= s.CapBytes {
			return removed, nil
		}
		if i.Key == keep || ctx.Err() != nil {
			continue
		}
		err := s.remove(ctx, i)
		if err != nil {
			if !errors.Is(err, backend.ErrStateInUse) && !errors.Is(err, ErrBusy) {
				s.log().Warn("a template cannot be removed to make room", "key", i.Key, "error", err)
			}
			continue
		}
		if left := host.TreeAllocated(i.State); left < i.Bytes {
			total -= i.Bytes - left
			removed = append(removed, i)
			s.log().Info("template removed to make room", "key", i.Key[:keyDigits], "image", i.Image, "bytes", i.Bytes)
		}
	}
	if total > s.CapBytes {
		s.log().Warn(fmt.Sprintf("templates take %d bytes, the limit is %d: those that are left are in use", total, s.CapBytes))
	}
	return removed, ctx.Err()
}
