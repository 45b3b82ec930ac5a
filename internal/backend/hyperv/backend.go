package hyperv

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/backend/hyperv/powershell"
	"sandboxforge/internal/fault"
)

// Backend implements backend.Backend.
type Backend struct {
	c      Config
	shells *powershell.Pool
	// Limits of the scripts, and lateWait.
	queryLimit, changeLimit, lateWait time.Duration
}

var _ backend.Backend = (*Backend)(nil)

// pools are shared by the Backends of a process: a PowerShell is a process of
// some size, and slow to start.
var pools struct {
	sync.Mutex
	of map[string]*powershell.Pool
}

// New makes a Backend. Nothing is started or asked.
func New(c Config) (*Backend, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	pools.Lock()
	defer pools.Unlock()
	if pools.of == nil {
		pools.of = map[string]*powershell.Pool{}
	}
	p := pools.of[c.PowerShell]
	if p == nil {
		p = powershell.NewPool(powershell.Options{Path: c.PowerShell, Dir: filepath.Dir(c.PowerShell), Logger: c.Logger})
		pools.of[c.PowerShell] = p
	}
	return &Backend{c: c, shells: p, queryLimit: queryLimit, changeLimit: changeLimit, lateWait: lateWait}, nil
}

// Name implements backend.Backend.
func (b *Backend) Name() string { return "hyperv" }

// Capabilities implements backend.Backend.
func (b *Backend) Capabilities() backend.Capabilities {
	return backend.Capabilities{DiskGrowth: true}
}

// Inspect implements backend.Backend.
func (b *Backend) Inspect(ctx context.Context, name string) (backend.Info, error) {
	if err := backend.CheckName(name); err != nil {
		return backend.Info{}, err
	}
	r, err := b.readRecord(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return b.inspectStray(ctx, name)
	case err != nil:
		return b.broken(name, "%s", err), nil
	case !r.Made:
		return b.broken(name, "its creation did not come to an end"), nil
	}
	m, found, err := b.find(ctx, r.ID)
	if err != nil {
		return backend.Info{}, err
	}
	if !found {
		// Deleted meanwhile, by us, or by hand.
		if _, err := b.readRecord(name); errors.Is(err, fs.ErrNotExist) {
			return backend.Info{}, notFound(name)
		}
	}
	return b.describe(r, m, found), nil
}

// inspectStray looks for a machine with our marker that has no directory.
func (b *Backend) inspectStray(ctx context.Context, name string) (backend.Info, error) {
	all, err := b.list(ctx, nil)
	if err != nil {
		return backend.Info{}, err
	}
	for _, m := range all {
		if mark, ok := b.ours(m); ok && mark.Name == name {
			return b.broken(name, "its directory is gone, and its machine is left in Hyper-V"), nil
		}
	}
	return backend.Info{}, notFound(name)
}

func notFound(name string) error {
	return fault.Wrap(backend.ErrNotFound, fault.InstanceNotFound, "no VM %s", name)
}

func (b *Backend) broken(name, format string, args ...any) backend.Info {
	f := fault.New(fault.Internal, format, args...)
	return backend.Info{Name: name, State: backend.Broken, Detail: f.Message, Dir: b.dir(name)}
}

// describe joins what the record and Hyper-V say.
func (b *Backend) describe(r record, m machineInfo, found bool) backend.Info {
	dir := b.dir(r.Spec.Name)
	info := backend.Info{Name: r.Spec.Name, State: backend.Stopped, Dir: dir, DiskUsed: diskUsed(dir)}
	switch {
	case !found:
		info.State, info.Detail = backend.Broken, "Hyper-V has no such machine any more: it was removed by hand"
	case !strings.Contains(m.Notes, r.Token):
		info.State, info.Detail = backend.Broken, "the notes of its machine were changed in Hyper-V, where SandboxForge keeps its marker"
	case m.runs():
		info.State = backend.Running
		info.StartedAt = time.Now().Add(-time.Duration(m.Uptime) * time.Second).UTC().Truncate(time.Second)
	default:
		if _, err := os.Stat(filepath.Join(dir, diskFile)); err != nil {
			info.State, info.Detail = backend.Broken, "its disk is gone"
		}
	}
	return info
}

// diskUsed counts the virtual disks, those of checkpoints too.
func diskUsed(dir string) (n int64) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if ext := strings.ToLower(filepath.Ext(e.Name())); ext != ".vhdx" && ext != ".avhdx" {
			continue
		}
		if st, err := e.Info(); err == nil {
			n += st.Size()
		}
	}
	return n
}

// ours is the marker of a machine, if it is one of this storage directory.
func (b *Backend) ours(m machineInfo) (marker, bool) {
	mark, ok := parseMarker(m.Notes)
	if !ok {
		return mark, false
	}
	store, err := b.storeID()
	return mark, err == nil && mark.Store == store
}

// List implements backend.Backend.
func (b *Backend) List(ctx context.Context) ([]backend.Info, error) {
	entries, err := os.ReadDir(b.c.StorageDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	machines, err := b.list(ctx, nil)
	if err != nil {
		return nil, err
	}
	byID := map[string]machineInfo{}
	strays := map[string]bool{}
	for _, m := range machines {
		byID[m.ID] = m
		if mark, ok := b.ours(m); ok {
			strays[mark.Name] = true
		}
	}
	var all []backend.Info
	for _, e := range entries {
		name := e.Name()
		if backend.CheckName(name) != nil || !e.IsDir() {
			continue
		}
		r, err := b.readRecord(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // gone meanwhile
		case err != nil:
			all = append(all, b.broken(name, "%s", err))
		case !r.Made:
			all = append(all, b.broken(name, "its creation did not come to an end"))
		default:
			m, found := byID[r.ID]
			if !found { // made or deleted meanwhile, or its notes were changed
				if m, found, err = b.find(ctx, r.ID); err != nil {
					return nil, err
				}
				if _, err := b.readRecord(name); errors.Is(err, fs.ErrNotExist) {
					continue
				}
			}
			all = append(all, b.describe(r, m, found))
		}
		delete(strays, name)
	}
	for name := range strays {
		if _, err := os.Lstat(b.dir(name)); err == nil {
			continue // made meanwhile
		}
		all = append(all, b.broken(name, "its directory is gone, and its machine is left in Hyper-V"))
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all, nil
}
