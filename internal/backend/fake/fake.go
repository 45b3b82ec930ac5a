package fake

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// Options is how a fake behaves. It belongs to a Backend value, not to the
// state: another value on the same directory may behave otherwise.
type Options struct {
	// Serve plays the guest: it is called in a goroutine of its own for each
	// agent stream and returns when the stream is closed. Nil: whatever comes
	// is sent back.
	Serve func(name string, rw io.ReadWriteCloser)
	// Hooks inject faults.
	Hooks Hooks
	// Console is what Machine.Console returns the end of.
	Console []byte
	// Memory is what saved states carry of a guest; nil: nothing.
	Memory Memory
	// States lets VMs be saved and begin in saved states: Snapshots and Clones
	// in the fake's own Capabilities.
	States bool
	// Build stands for everything that a state depends on beside the Spec: one
	// saved under another Build is unfit.
	Build string
	// Capabilities and Report replace the fake's own, if not nil.
	Capabilities *backend.Capabilities
	Report       *backend.Report
}

// Hooks are called at the beginning of a method, before it changes anything.
// An error fails the method; a hook that blocks until its context ends makes
// the method hang. Nil hooks do nothing.
type Hooks struct {
	Create, Start, Inspect, Delete, Dial func(ctx context.Context, name string) error
	// Stop is called by Machine.Stop when a grace is given: a guest that is
	// asked to power off. An error, or no return within the grace, means force.
	Stop func(ctx context.Context, name string) error
	// Save is called by Machine.Save before anything is written, SaveHalf when
	// the guest stands still and the state is half written.
	Save, SaveHalf func(ctx context.Context, name, dir string) error
	// CheckState, SettleState and RemoveState are called with the state's
	// directory.
	CheckState, SettleState, RemoveState func(ctx context.Context, dir string) error
	// StateKey is called with the name of the image.
	StateKey func(ctx context.Context, image string) error
	// Boot is what WatchBoot returns, unless the VM or the context ends first.
	// Nil: every boot succeeds.
	Boot func(ctx context.Context, name string, o backend.StartOptions) error
}

func call(hook func(context.Context, string) error, ctx context.Context, name string) error {
	if hook != nil {
		if err := hook(ctx, name); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// Backend implements backend.Backend.
type Backend struct {
	dir string
	o   Options
}

var (
	_ backend.Backend     = (*Backend)(nil)
	_ backend.StateKeeper = (*Backend)(nil)
)

// New makes a Backend whose VMs are in dir, which is made when missing.
func New(dir string, o Options) (*Backend, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	return &Backend{dir, o}, os.MkdirAll(dir, 0o700)
}

// Name implements backend.Backend.
func (b *Backend) Name() string { return "fake" }

// Probe implements backend.Backend.
func (b *Backend) Probe(ctx context.Context, p backend.Progress) (backend.Report, error) {
	p.Report("probe", "looking at nothing")
	if b.o.Report != nil {
		return *b.o.Report, context.Cause(ctx)
	}
	return backend.Report{
		Usable: true, Version: "0", Accelerator: "none", Evidence: []string{"A fake needs no accelerator."},
	}, context.Cause(ctx)
}

// Capabilities implements backend.Backend.
func (b *Backend) Capabilities() backend.Capabilities {
	if b.o.Capabilities != nil {
		return *b.o.Capabilities
	}
	return backend.Capabilities{DiesWithOwner: true, Snapshots: b.o.States, Clones: b.o.States}
}

// Files of a VM.
const (
	vmFile   = "vm.json"
	runFile  = "run.json"
	lockFile = "vm.lock"
)

// locked holds the lock of the whole directory. Every operation takes it, the
// queries too: whether a VM runs is found out by trying its lock, and that must
// not collide with a start.
func (b *Backend) locked(ctx context.Context) (*flock.Flock, error) {
	l := flock.New(filepath.Join(b.dir, ".operations"))
	if _, err := l.TryLockContext(ctx, 2*time.Millisecond); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, err
	}
	return l, nil
}

// Create implements backend.Backend.
func (b *Backend) Create(ctx context.Context, s backend.Spec) error {
	if err := s.Check(); err != nil {
		return err
	}
	if err := call(b.o.Hooks.Create, ctx, s.Name); err != nil {
		return err
	}
	l, err := b.locked(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock()
	dir := filepath.Join(b.dir, s.Name)
	var old backend.Spec
	switch err := readJSON(filepath.Join(dir, vmFile), &old); {
	case err == nil && old == s:
		return nil
	case err == nil:
		return fault.Wrap(backend.ErrExists, fault.InvalidArgument, "the VM %s exists with another specification", s.Name)
	case !errors.Is(err, fs.ErrNotExist):
		return fault.Wrap(errors.Join(backend.ErrExists, err), fault.BackendCommandFailed, "the VM %s is there but damaged", s.Name)
	}
	if s.From != "" {
		if err := b.fits(s); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if s.From != "" {
		// The state learns of its user before there is one.
		if err := addUser(s.From, user{Dir: dir, Memory: true}); err != nil {
			return errors.Join(err, os.RemoveAll(dir))
		}
	}
	return writeJSON(filepath.Join(dir, vmFile), s)
}

// Start implements backend.Backend.
func (b *Backend) Start(ctx context.Context, name string, o backend.StartOptions) (backend.Machine, error) {
	if err := backend.CheckName(name); err != nil {
		return nil, err
	}
	if err := call(b.o.Hooks.Start, ctx, name); err != nil {
		return nil, err
	}
	l, err := b.locked(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Unlock()
	dir := filepath.Join(b.dir, name)
	info, err := b.inspect(name)
	switch {
	case err != nil:
		return nil, err
	case info.State == backend.Running:
		return nil, fault.Wrap(backend.ErrRunning, fault.BackendCommandFailed, "the VM %s runs already", name)
	case info.State == backend.Broken:
		return nil, fault.New(fault.BackendCommandFailed, "the VM %s is broken", name).Because("%s", info.Detail).Next("delete it")
	}
	lock := flock.New(filepath.Join(dir, lockFile))
	if ok, err := lock.TryLock(); err != nil || !ok {
		return nil, errors.Join(err, backend.ErrRunning)
	}
	if err := b.resume(name); err != nil {
		lock.Unlock()
		return nil, err
	}
	m, err := newMachine(b, name, lock, o)
	if err != nil {
		lock.Unlock()
		return nil, err
	}
	return m, nil
}

// Inspect implements backend.Backend.
func (b *Backend) Inspect(ctx context.Context, name string) (backend.Info, error) {
	if err := backend.CheckName(name); err != nil {
		return backend.Info{}, err
	}
	if err := call(b.o.Hooks.Inspect, ctx, name); err != nil {
		return backend.Info{}, err
	}
	l, err := b.locked(ctx)
	if err != nil {
		return backend.Info{}, err
	}
	defer l.Unlock()
	return b.inspect(name)
}

// inspect needs the lock of the directory.
func (b *Backend) inspect(name string) (backend.Info, error) {
	dir := filepath.Join(b.dir, name)
	info := backend.Info{Name: name, State: backend.Stopped, Dir: dir}
	if st, err := os.Lstat(dir); err != nil || !st.IsDir() {
		return backend.Info{}, fault.Wrap(backend.ErrNotFound, fault.InstanceNotFound, "no VM %s", name)
	}
	var s backend.Spec
	if err := readJSON(filepath.Join(dir, vmFile), &s); err != nil {
		info.State, info.Detail = backend.Broken, err.Error()
		return info, nil
	}
	if st, err := os.Stat(filepath.Join(dir, vmFile)); err == nil {
		info.DiskUsed = st.Size()
	}
	if b.runs(name) {
		info.State, info.Accelerator = backend.Running, "none"
		var r runRecord
		if readJSON(filepath.Join(dir, runFile), &r) == nil {
			info.StartedAt = r.StartedAt
		}
	}
	return info, nil
}

// runs needs the lock of the directory.
func (b *Backend) runs(name string) bool {
	path := filepath.Join(b.dir, name, lockFile)
	if _, err := os.Stat(path); err != nil {
		return false
	}
	l := flock.New(path)
	defer l.Close()
	free, err := l.TryLock()
	return err == nil && !free
}

// List implements backend.Backend.
func (b *Backend) List(ctx context.Context) ([]backend.Info, error) {
	l, err := b.locked(ctx)
	if err != nil {
		return nil, err
	}
	defer l.Unlock()
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return nil, err
	}
	var all []backend.Info
	for _, e := range entries {
		if backend.CheckName(e.Name()) != nil || !e.IsDir() {
			continue
		}
		info, err := b.inspect(e.Name())
		if err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	return all, nil
}

// Delete implements backend.Backend.
func (b *Backend) Delete(ctx context.Context, name string) error {
	if err := backend.CheckName(name); err != nil {
		return err
	}
	if err := call(b.o.Hooks.Delete, ctx, name); err != nil {
		return err
	}
	l, err := b.locked(ctx)
	if err != nil {
		return err
	}
	defer l.Unlock()
	if b.runs(name) {
		if err := End(ctx, b.dir, name, backend.Exit{Reason: backend.ExitStopped, Detail: "the VM was deleted"}); err != nil && !errors.Is(err, backend.ErrNotRunning) {
			return err
		}
	}
	dir := filepath.Join(b.dir, name)
	states := b.needs(name)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for _, state := range states {
		if err := dropUser(state, dir); err != nil {
			return err
		}
	}
	return nil
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// writeJSON replaces a file atomically.
func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
