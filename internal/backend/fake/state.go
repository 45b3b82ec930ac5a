package fake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// Memory is a guest's memory, as far as a test wants it in saved states. Its
// methods must not block.
type Memory interface {
	// Save returns what a running guest has in its memory.
	Save(name string) []byte
	// Load gives it to a guest that begins in a saved state.
	Load(name string, data []byte)
}

// Files of a saved state.
const (
	stateFile  = "state.json" // the last to be written: without it there is no state
	partFile   = "part.json"  // instead of stateFile: only the disk is left
	memoryFile = "memory"
	usersDir   = "users"
)

// savedFile, in a VM's directory, lists the states that were saved of it: its
// disk builds on them.
const savedFile = "saved.json"

// stateRecord is stateFile and partFile.
type stateRecord struct {
	backend.SavedState
	MemoryDigest string `json:"memory_digest"`
}

// user is a VM or a state that needs a state.
type user struct {
	Dir    string `json:"dir"`
	Memory bool   `json:"memory"` // it began there; otherwise only its disk builds on it
}

// lives: a user whose directory is gone needs nothing any more.
func (u user) lives() bool {
	_, err := os.Lstat(u.Dir)
	return err == nil
}

// unsupported is the error of a fake without Options.States.
func (b *Backend) unsupported() error {
	if c := b.Capabilities(); c.Clones && c.Snapshots {
		return nil
	}
	return fault.Wrap(backend.ErrUnsupported, fault.UnsupportedByBackend, "this fake keeps no saved states")
}

// StateKey implements backend.StateKeeper.
func (b *Backend) StateKey(ctx context.Context, s backend.Spec) (string, error) {
	if err := b.unsupported(); err != nil {
		return "", err
	}
	if err := call(b.o.Hooks.StateKey, ctx, s.Image); err != nil {
		return "", err
	}
	s.Name, s.Hostname, s.DiskBytes, s.From, s.MemoryFile = "", "", 0, "", false
	text, err := json.Marshal(struct {
		Build string
		Spec  backend.Spec
	}{b.o.Build, s})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), context.Cause(ctx)
}

// CheckState implements backend.StateKeeper.
func (b *Backend) CheckState(ctx context.Context, dir string) (backend.SavedState, error) {
	if err := b.unsupported(); err != nil {
		return backend.SavedState{}, err
	}
	if err := call(b.o.Hooks.CheckState, ctx, dir); err != nil {
		return backend.SavedState{}, err
	}
	return b.checkState(ctx, dir)
}

// SettleState implements backend.StateKeeper.
func (b *Backend) SettleState(ctx context.Context, dir string) error {
	if err := b.unsupported(); err != nil {
		return err
	}
	if err := call(b.o.Hooks.SettleState, ctx, dir); err != nil {
		return err
	}
	_, err := b.checkState(ctx, dir)
	return err
}

func (b *Backend) checkState(ctx context.Context, dir string) (backend.SavedState, error) {
	unfit := func(err error, format string, args ...any) error {
		return fault.Wrap(errors.Join(backend.ErrStateUnfit, err), fault.BackendCommandFailed, "the saved state %s: "+format, append([]any{dir}, args...)...)
	}
	var r stateRecord
	if err := readJSON(filepath.Join(dir, stateFile), &r); err != nil {
		return r.SavedState, unfit(err, "no complete state")
	}
	r.Dir = dir
	memory, err := os.ReadFile(filepath.Join(dir, memoryFile))
	if err != nil || digest(memory) != r.MemoryDigest {
		return r.SavedState, unfit(err, "its memory is damaged")
	}
	key, err := b.StateKey(ctx, r.Spec)
	if err != nil {
		return r.SavedState, err
	}
	if key != r.Key {
		return r.SavedState, unfit(nil, "it was saved by another build")
	}
	return r.SavedState, nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// fits checks the state that a new VM is to begin in.
func (b *Backend) fits(s backend.Spec) error {
	if err := b.unsupported(); err != nil {
		return err
	}
	st, err := b.checkState(context.Background(), s.From)
	if err != nil {
		return err
	}
	if st.Spec.CPUs != s.CPUs || st.Spec.MemoryMiB != s.MemoryMiB || st.Spec.Arch != s.Arch || st.Spec.Image != s.Image {
		return fault.New(fault.InvalidArgument, "the VM %s cannot begin in %s, which is of another machine", s.Name, s.From)
	}
	return nil
}

// resume gives a VM that begins in a state what its guest had in memory.
func (b *Backend) resume(name string) error {
	var s backend.Spec
	if err := readJSON(filepath.Join(b.dir, name, vmFile), &s); err != nil || s.From == "" {
		return err
	}
	if _, err := b.checkState(context.Background(), s.From); err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(s.From, memoryFile))
	if err == nil && b.o.Memory != nil {
		b.o.Memory.Load(name, data)
	}
	return err
}

// StateUsers returns the directories of the VMs and saved states that need the
// saved state in dir.
func (b *Backend) StateUsers(ctx context.Context, dir string) ([]string, error) {
	l, err := b.locked(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Unlock()
	all, err := users(dir)
	var dirs []string
	for _, u := range all {
		dirs = append(dirs, u.Dir)
	}
	return dirs, err
}

// RemoveState implements backend.StateKeeper.
func (b *Backend) RemoveState(ctx context.Context, dir string) error {
	if err := b.unsupported(); err != nil {
		return err
	}
	if err := call(b.o.Hooks.RemoveState, ctx, dir); err != nil {
		return err
	}
	l, err := b.locked(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock()
	var r stateRecord
	if readJSON(filepath.Join(dir, stateFile), &r) != nil {
		return reap(dir)
	}
	all, err := users(dir)
	if err != nil {
		return err
	}
	inUse := &backend.InUseError{Dir: dir}
	for _, u := range all {
		if u.Memory {
			inUse.Users = append(inUse.Users, u.Dir)
		}
	}
	switch {
	case inUse.Users != nil:
		return inUse
	case len(all) == 0:
		return reap(dir)
	}
	// Only disks build on it. The manifest goes first: what is left is no state.
	if err := os.Rename(filepath.Join(dir, stateFile), filepath.Join(dir, partFile)); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(dir, memoryFile))
}

// reap removes what is not, or no longer, a state, unless a disk builds on it,
// and after it what was kept for it alone. It needs the lock of the directory.
func reap(dir string) error {
	var r stateRecord
	for _, f := range []string{partFile, stateFile} {
		if err := readJSON(filepath.Join(dir, f), &r); err == nil {
			if all, err := users(dir); err != nil || len(all) > 0 {
				return err
			}
			break
		}
	}
	if err := os.RemoveAll(dir); err != nil || r.Parent == "" {
		return err
	}
	return dropUser(r.Parent, dir)
}

// users lists who needs a state.
func users(dir string) (all []user, err error) {
	entries, err := os.ReadDir(filepath.Join(dir, usersDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		var u user
		if err := readJSON(filepath.Join(dir, usersDir, e.Name()), &u); err != nil {
			return nil, err
		}
		if u.lives() {
			all = append(all, u)
		}
	}
	return all, err
}

func userFile(state, dir string) string {
	return filepath.Join(state, usersDir, digest([]byte(dir))[:16]+".json")
}

// addUser needs the lock of the directory, as dropUser does.
func addUser(state string, u user) error {
	if err := os.MkdirAll(filepath.Join(state, usersDir), 0o700); err != nil {
		return err
	}
	return writeJSON(userFile(state, u.Dir), u)
}

// dropUser takes a user that is gone off a state's list, and removes what is
// left of a removed state with its last user.
func dropUser(state, dir string) error {
	if err := os.Remove(userFile(state, dir)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if _, err := os.Lstat(filepath.Join(state, stateFile)); err == nil {
		return nil
	}
	return reap(state)
}

// needs lists the states that a VM needs.
func (b *Backend) needs(name string) []string {
	var s backend.Spec
	var saved []string
	_ = readJSON(filepath.Join(b.dir, name, vmFile), &s)        // a broken VM may
	_ = readJSON(filepath.Join(b.dir, name, savedFile), &saved) // lack either
	if s.From != "" {
		saved = append(saved, s.From)
	}
	return saved
}

// Save implements backend.Saver.
func (m *machine) Save(ctx context.Context, dir string, o backend.SaveOptions) (backend.SavedState, error) {
	m.saving.Lock()
	defer m.saving.Unlock()
	if err := m.b.unsupported(); err != nil {
		return backend.SavedState{}, err
	}
	if hook := m.b.o.Hooks.Save; hook != nil {
		if err := hook(ctx, m.name, dir); err != nil {
			return backend.SavedState{}, err
		}
	}
	if err := context.Cause(ctx); err != nil {
		return backend.SavedState{}, err
	}
	select {
	case <-m.done:
		return backend.SavedState{}, fault.Wrap(backend.ErrNotRunning, fault.InstanceLost, "the VM %s has ended (%s)", m.name, m.Exit().Reason)
	default:
	}
	if !filepath.IsAbs(dir) {
		return backend.SavedState{}, fault.New(fault.InvalidArgument, "a state is saved under an absolute path, not %q", dir)
	}
	o.Progress.Report("save", "copying nothing")
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return backend.SavedState{}, fault.Wrap(err, fault.InvalidArgument, "the state cannot be saved: %s is there already", dir)
		}
		return backend.SavedState{}, fault.Wrap(err, fault.BackendCommandFailed, "the state cannot be saved")
	}
	r, err := m.write(context.WithoutCancel(ctx), dir)
	if err != nil {
		if r.Parent != "" {
			err = errors.Join(err, dropUser(r.Parent, dir))
		}
		return backend.SavedState{}, errors.Join(err, os.RemoveAll(dir))
	}
	if o.End {
		m.end(backend.Exit{Reason: backend.ExitStopped, Detail: "its state was saved"})
	}
	return r.SavedState, nil
}

// write fills the directory of a new state.
func (m *machine) write(ctx context.Context, dir string) (r stateRecord, err error) {
	began := time.Now()
	vm := filepath.Join(m.b.dir, m.name)
	var s backend.Spec
	if err := readJSON(filepath.Join(vm, vmFile), &s); err != nil {
		return r, err
	}
	key, err := m.b.StateKey(ctx, s)
	if err != nil {
		return r, err
	}
	var memory []byte
	if m.b.o.Memory != nil {
		memory = m.b.o.Memory.Save(m.name)
	}
	r = stateRecord{MemoryDigest: digest(memory), SavedState: backend.SavedState{
		Dir: dir, Key: key, Spec: s, Accelerator: "none", CreatedAt: began.UTC(),
		MemoryBytes: int64(len(memory)), DiskSize: s.DiskBytes,
	}}
	if err := os.WriteFile(filepath.Join(dir, memoryFile), memory, 0o600); err != nil {
		return r, err
	}
	if hook := m.b.o.Hooks.SaveHalf; hook != nil {
		if err := hook(ctx, m.name, dir); err != nil {
			return r, err
		}
	}
	l, err := m.b.locked(ctx)
	if err != nil {
		return r, err
	}
	defer l.Unlock()
	select {
	case <-m.done:
		return r, fault.Wrap(backend.ErrNotRunning, fault.InstanceLost, "the VM %s ended while it was saved", m.name)
	default:
	}
	var saved []string
	_ = readJSON(filepath.Join(vm, savedFile), &saved) // missing before the first save
	if r.Parent = s.From; len(saved) > 0 {
		r.Parent = saved[len(saved)-1]
	}
	if r.Parent != "" {
		if err := addUser(r.Parent, user{Dir: dir}); err != nil {
			return r, err
		}
	}
	if err := addUser(dir, user{Dir: vm}); err != nil {
		return r, err
	}
	if err := writeJSON(filepath.Join(vm, savedFile), append(saved, dir)); err != nil {
		return r, err
	}
	r.Pause = time.Since(began)
	return r, writeJSON(filepath.Join(dir, stateFile), r)
}
