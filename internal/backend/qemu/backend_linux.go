package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/host"
)

// Backend runs VMs with QEMU. See the package documentation.
type Backend struct {
	c      Config
	limits limits
	// noGeneration makes VMs without that device; for tests.
	noGeneration bool
	// blind takes the memory of processes for unreadable; for tests.
	blind bool
	// frozen is called in a save by sending while the guest stands still; for
	// tests.
	frozen func(*vm)

	saveWays struct {
		sync.Mutex
		of map[string]saveVerdict // by QEMU
	}
}

// limits are how long guests may take. Tests shorten them.
type limits struct {
	kvmTrial, tcgTrial     time.Duration // see accel_linux.go
	kvmSilence, tcgSilence time.Duration // see vm_linux.go
	flattenDelay           time.Duration // see flatten_linux.go
	flattenSpeed           int64
	jobEnd                 time.Duration // see flatten_linux.go
	diskSwitch             time.Duration // see save_linux.go
}

// blindForTests is set by the linker where whole programs are tested: see
// Backend.blind.
var blindForTests string

var (
	_ backend.Backend     = (*Backend)(nil)
	_ backend.StateKeeper = (*Backend)(nil)
)

// New makes a Backend. It touches nothing on disk but the three directories,
// which it makes when they are missing.
func New(c Config) (*Backend, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	for _, dir := range []string{c.StateDir, c.RunDir, c.CacheDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fault.Wrap(err, fault.BackendUnavailable, "cannot make the directory %s", dir).
				Next("make it writable, or set SANDBOXFORGE_HOME to a directory that is")
		}
	}
	return &Backend{c: c, limits: limits{kvmTrial, tcgTrial, kvmSilence, tcgSilence, flattenDelay, flattenSpeed, jobEnd, saveLimit}, blind: blindForTests != ""}, nil
}

// Name implements backend.Backend.
func (b *Backend) Name() string { return "qemu" }

// Capabilities implements backend.Backend.
func (b *Backend) Capabilities() backend.Capabilities {
	return backend.Capabilities{Snapshots: true, Clones: true, DiskGrowth: true, DiesWithOwner: true}
}

func (b *Backend) dir(name string) string { return filepath.Join(b.c.StateDir, name) }

// agentSocket is where the agent's stream of a VM is dialled.
func (b *Backend) agentSocket(name string) string {
	return filepath.Join(b.c.RunDir, name+".agent")
}

// arch is the architecture a Spec means.
func arch(s backend.Spec) string {
	if s.Arch == "" {
		return runtime.GOARCH
	}
	return s.Arch
}

// Create implements backend.Backend. A VM half-made by a Create that was
// killed is made anew.
func (b *Backend) Create(ctx context.Context, s backend.Spec) (err error) {
	if err := s.Check(); err != nil {
		return err
	}
	lock, err := b.lockName(ctx, s.Name, nil)
	if err != nil {
		return err
	}
	defer lock.Close()

	dir := b.dir(s.Name)
	old, err := readVM(dir, s.Name)
	switch {
	case err == nil && old.Spec == s:
		return nil
	case err == nil:
		return fault.Wrap(backend.ErrExists, fault.InvalidArgument, "the VM %s exists with another specification", s.Name).
			With("existing", old.Spec)
	case !errors.Is(err, fs.ErrNotExist):
		return fault.Wrap(errors.Join(backend.ErrExists, err), fault.BackendCommandFailed, "the VM %s is there but damaged", s.Name).
			Next("delete it first")
	}
	img, err := b.imageOf(s)
	if err != nil {
		return err
	}
	if img.Arch != arch(s) {
		return fault.New(fault.ImageNotFound, "the image %q is for %s, not for %s", img.Name, img.Arch, arch(s))
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	// The directory may be there already: its owner keeps other files in it.
	made := os.Mkdir(dir, 0o700)
	if made != nil && !errors.Is(made, fs.ErrExist) {
		return fault.Wrap(made, fault.BackendCommandFailed, "cannot make the directory of the VM %s", s.Name)
	}
	defer func() {
		if err == nil {
			return
		}
		for _, f := range []string{vmFile, diskFile} {
			os.Remove(filepath.Join(dir, f))
		}
		if made == nil {
			os.RemoveAll(dir)
		}
	}()
	disk := filepath.Join(dir, diskFile)
	if err := os.Remove(disk); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	record := vmRecord{Version: vmRecordVersion, Spec: s, Image: img, CreatedAt: time.Now().UTC()}
	if s.From != "" {
		err = b.createClone(ctx, disk, dir, &record)
	} else {
		record.DiskBytes, err = b.createOverlay(ctx, disk, img, s.DiskBytes)
	}
	if err != nil {
		return diskFault(err, s.Name)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return diskFault(writeJSON(filepath.Join(dir, vmFile), record, true), s.Name)
}

// diskFault gives a full disk its own code.
func diskFault(err error, name string) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.Wrap(err, fault.InsufficientDisk, "no space on the host for the disk of the VM %s", name).
			Next("free space, or destroy instances that are not needed")
	}
	return err
}

// Inspect implements backend.Backend.
func (b *Backend) Inspect(ctx context.Context, name string) (backend.Info, error) {
	if err := backend.CheckName(name); err != nil {
		return backend.Info{}, err
	}
	info, err := b.inspect(name)
	if errors.Is(err, fs.ErrNotExist) {
		return info, notFound(name)
	}
	return info, err
}

func notFound(name string) error {
	return fault.Wrap(backend.ErrNotFound, fault.InstanceNotFound, "no VM %s", name)
}

// inspect fails with fs.ErrNotExist when there is nothing of that name.
func (b *Backend) inspect(name string) (backend.Info, error) {
	dir := b.dir(name)
	st, err := os.Lstat(dir)
	if err != nil {
		return backend.Info{}, err
	}
	if !st.IsDir() {
		return backend.Info{}, fmt.Errorf("%s is not a directory: %w", dir, fs.ErrNotExist)
	}
	info := backend.Info{Name: name, State: backend.Stopped, Dir: dir, DiskUsed: host.TreeAllocated(dir)}
	if running, err := b.isRunning(name); err != nil {
		return info, err
	} else if running {
		info.State = backend.Running
		var r runRecord
		if readJSON(filepath.Join(dir, runFile), &r) == nil && r.current() {
			info.PID, info.Accelerator, info.StartedAt = r.PID, r.Accel, r.StartedAt
		}
	}
	vm, err := readVM(dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		info.State, info.Detail = backend.Broken, "it is half-made: being made or deleted now, or left by a process that was killed"
	case err != nil:
		info.State, info.Detail = backend.Broken, err.Error()
	default:
		if st, err := os.Lstat(vm.disk(dir)); err != nil || !st.Mode().IsRegular() {
			info.State, info.Detail = backend.Broken, "its disk is missing"
		} else if err := checkImage(vm.Image); err != nil && info.State != backend.Running {
			info.State, info.Detail = backend.Broken, err.Error()
		}
	}
	if _, err := os.Lstat(dir); err != nil { // deleted meanwhile
		return backend.Info{}, err
	}
	return info, nil
}

// isRunning asks the kernel whether a QEMU holds the VM's lock.
func (b *Backend) isRunning(name string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(b.dir(name), lockFile), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	return lockHeld(f, wholeFile)
}

// current reports whether the record's process is still the same one.
func (r runRecord) current() bool {
	ticks, err := startTicks(r.PID)
	return err == nil && ticks == r.StartTicks
}

// List implements backend.Backend.
func (b *Backend) List(ctx context.Context) ([]backend.Info, error) {
	entries, err := os.ReadDir(b.c.StateDir)
	if err != nil {
		return nil, fault.Wrap(err, fault.BackendCommandFailed, "cannot list the VMs")
	}
	var all []backend.Info
	for _, e := range entries {
		if backend.CheckName(e.Name()) != nil || !e.IsDir() {
			continue
		}
		info, err := b.inspect(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	return all, nil
}
