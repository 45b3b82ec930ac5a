package hyperv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/backend/hyperv/powershell"
	"sandboxforge/internal/fault"
)

// cleanLimit bounds the removal of what a failed call made.
const cleanLimit = 3 * time.Minute

// Create implements backend.Backend. What one of its scripts began is waited
// for also when ctx ends, so that it can be undone.
func (b *Backend) Create(ctx context.Context, s backend.Spec) error {
	if err := b.checkSpec(s); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	unlock, err := b.lock(ctx, s.Name)
	if err != nil {
		return err
	}
	defer unlock()
	old, err := b.readRecord(s.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err == nil && old.Made && old.Spec == s:
		return nil
	case err == nil && old.Made:
		return fault.Wrap(backend.ErrExists, fault.InvalidArgument, "the VM %s exists with another specification", s.Name).
			Next("use another name, or delete that one")
	}
	// Whatever an earlier try left, a machine without a directory included.
	if err := b.remove(ctx, s.Name); err != nil {
		return err
	}
	if err := b.make(ctx, s); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
		defer cancel()
		if errors.Is(err, errBegun) {
			b.awaitLate(clean, s.Name)
		}
		if cerr := b.remove(clean, s.Name); cerr != nil {
			b.c.Logger.Error("what a failed creation left could not be removed", "vm", s.Name, "error", cerr)
			err = errors.Join(err, fmt.Errorf("and what is left could not be removed: %w", cerr))
		}
		return err
	}
	return nil
}

// lateWait is how long a machine is waited for whose creation was begun by a
// PowerShell that gave no answer: vmms may make it yet, and without its record
// nobody would know it as ours.
const lateWait = 5 * time.Second

// errBegun: it is not known what became of the machine's creation.
var errBegun = errors.New("the creation of the machine was begun")

func (b *Backend) awaitLate(ctx context.Context, name string) {
	r, err := b.readRecord(name)
	if err != nil {
		return
	}
	for until := time.Now().Add(b.lateWait); time.Now().Before(until); {
		if all, err := b.list(ctx, []string{r.Machine}); err == nil {
			for _, m := range all {
				if m.Name == r.Machine {
					return
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(b.c.Poll, 200*time.Millisecond)):
		}
	}
}

func (b *Backend) checkSpec(s backend.Spec) error {
	if err := s.Check(); err != nil {
		return err
	}
	switch {
	case s.From != "" || s.MemoryFile:
		return fault.Wrap(backend.ErrUnsupported, fault.UnsupportedByBackend, "the hyperv backend has no saved states")
	case s.Arch != "" && s.Arch != runtime.GOARCH:
		return fault.Wrap(backend.ErrUnsupported, fault.UnsupportedByBackend, "Hyper-V runs guests of the host's architecture, %s, alone", runtime.GOARCH)
	}
	return nil
}

// make makes the VM. The name's lock is held, and nothing is there.
func (b *Backend) make(ctx context.Context, s backend.Spec) error {
	store, err := b.storeID()
	if err != nil {
		return err
	}
	r := newRecord(s)
	dir := b.dir(s.Name)
	if err := os.MkdirAll(filepath.Join(dir, hyperDir), 0o700); err != nil {
		return err
	}
	if err := protect(dir); err != nil {
		return err
	}
	if err := b.writeRecord(r); err != nil {
		return err
	}
	if err := b.writeSeed(r); err != nil {
		return err
	}
	if err := b.makeDisk(ctx, r); err != nil {
		return err
	}
	notes, err := json.Marshal(marker{SandboxForge: 1, Store: store, Name: s.Name, Token: r.Token})
	if err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	var made madeMachine
	if err := b.whole(ctx, "create", map[string]any{
		"name": r.Machine, "path": filepath.Join(dir, hyperDir), "notes": string(notes), "cpus": s.CPUs, "memory": memoryBytes(s),
		"disk": filepath.Join(dir, diskFile), "seed": filepath.Join(dir, seedFile), "mac": r.MAC, "switchName": b.c.SwitchName, "secureBoot": b.c.SecureBoot,
	}, &made); err != nil {
		if errors.Is(err, powershell.ErrUnknown) {
			return fmt.Errorf("%w: %w", errBegun, err)
		}
		return b.explainSwitch(ctx, err)
	}
	if err := made.check(b, r); err != nil {
		return err
	}
	r.ID, r.Made = made.ID, true
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return b.writeRecord(r)
}

// whole runs a script that changes something: to its end, whatever ctx does.
func (b *Backend) whole(ctx context.Context, name string, parameters map[string]any, v any) error {
	return b.call(context.WithoutCancel(ctx), name, b.changeLimit, parameters, v)
}

// memoryBytes is a multiple of 2 MiB, as static memory has to be.
func memoryBytes(s backend.Spec) int64 { return (s.MemoryMiB + 1) / 2 * 2 << 20 }

func (b *Backend) writeSeed(r record) error {
	k, err := b.makeKeys(r.Spec.Name)
	if err != nil {
		return err
	}
	private, err := os.ReadFile(filepath.Join(b.dir(r.Spec.Name), hostKeyFile))
	if err != nil {
		return err
	}
	hostname := r.Spec.Hostname
	if hostname == "" {
		hostname = strings.TrimRight(r.Spec.Name, "-")
	}
	return seed{
		instance: r.Token, hostname: hostname, user: b.c.SSHUser, userKey: k.user.PublicKey(), hostKey: private, hostPub: k.host.PublicKey(), mac: colons(r.MAC),
	}.write(filepath.Join(b.dir(r.Spec.Name), seedFile))
}

// base is what Hyper-V says of the base disk.
type base struct {
	Format   string `json:"format"`
	Type     string `json:"type"`
	Size     int64  `json:"size"`
	Attached bool   `json:"attached"`
}

// lookAtBase fails with a fault for a disk that VMs cannot build on.
func (b *Backend) lookAtBase(ctx context.Context) (d base, err error) {
	path := b.c.BaseVHDX
	bad := func(format string, args ...any) (base, error) {
		return base{}, fault.New(fault.BackendUnavailable, "the base disk %q cannot be used", path).
			Because(format, args...).
			Next("set HYPERV_BASE_VHDX to a dynamic or fixed VHDX made of a cloud image, see docs/SETUP.md")
	}
	st, err := os.Stat(path)
	switch {
	case path == "":
		return bad("HYPERV_BASE_VHDX is not set")
	case !filepath.IsAbs(path):
		return bad("its path is not absolute")
	case err != nil:
		return bad("%v", err)
	case !st.Mode().IsRegular():
		return bad("it is not a file")
	case !strings.EqualFold(filepath.Ext(path), ".vhdx"):
		return bad("its name does not end in .vhdx: machines of generation 2 need one, and the disk of a checkpoint (.avhdx) is none to build on")
	}
	if why := unusable(path); why != "" {
		return bad("%s", why)
	}
	if err := b.call(ctx, "base", b.queryLimit, map[string]any{"path": path}, &d); err != nil {
		return d, err
	}
	switch {
	case d.Format != "VHDX":
		return bad("it is a %s", d.Format)
	case d.Attached:
		return bad("it is attached to Windows or to a running machine: whoever writes to it breaks the VMs on it")
	case d.Size <= 0:
		return bad("it has a size of %d bytes", d.Size)
	}
	return d, nil
}

// busyTries is how often a disk that is in use is tried.
const busyTries = 5

func (b *Backend) makeDisk(ctx context.Context, r record) error {
	unlock, err := b.lockBase(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	d, err := b.lookAtBase(ctx)
	if err != nil {
		return err
	}
	path := filepath.Join(b.dir(r.Spec.Name), diskFile)
	parameters := map[string]any{"path": path, "parent": b.c.BaseVHDX, "size": 0}
	if r.Spec.DiskBytes > d.Size {
		parameters["size"] = (r.Spec.DiskBytes + 1<<20 - 1) >> 20 << 20
	}
	for try := 1; ; try++ {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		err := b.whole(ctx, "disk", parameters, nil)
		var e *powershell.Error
		if err == nil || try == busyTries || !errors.As(err, &e) || !e.HasCode(codeSharing) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Duration(try) * 200 * time.Millisecond):
		}
	}
}

// madeMachine is a new machine as Hyper-V shows it.
type madeMachine struct {
	ID                   string                  `json:"id"`
	Notes                string                  `json:"notes"`
	CPUs                 int64                   `json:"cpus"`
	Memory               int64                   `json:"memory"`
	DynamicMemory        bool                    `json:"dynamicMemory"`
	AutomaticCheckpoints bool                    `json:"automaticCheckpoints"`
	MAC                  string                  `json:"mac"`
	DynamicMAC           bool                    `json:"dynamicMac"`
	Switch               string                  `json:"switchName"`
	Disks                powershell.List[string] `json:"disks"`
}

// check compares what was asked for: a setting that did not take would lose
// data later, as automatic checkpoints, or find no address, as another MAC.
func (m madeMachine) check(b *Backend, r record) error {
	var wrong []string
	differs := func(what string, is bool) {
		if is {
			wrong = append(wrong, what)
		}
	}
	differs("id", len(m.ID) != 36)
	differs("marker", !strings.Contains(m.Notes, r.Token))
	differs("processors", m.CPUs != int64(r.Spec.CPUs))
	differs("memory", m.Memory != memoryBytes(r.Spec) || m.DynamicMemory)
	differs("automatic checkpoints", m.AutomaticCheckpoints)
	differs("MAC address", !strings.EqualFold(strings.NewReplacer("-", "", ":", "").Replace(m.MAC), r.MAC) || m.DynamicMAC)
	differs("switch", !strings.EqualFold(m.Switch, b.c.SwitchName))
	differs("disk", len(m.Disks) != 1 || !strings.EqualFold(m.Disks[0], filepath.Join(b.dir(r.Spec.Name), diskFile)))
	if wrong == nil {
		return nil
	}
	return fault.New(fault.BackendCommandFailed, "Hyper-V made another machine than was asked for: %s differ", strings.Join(wrong, ", ")).
		With("machine", m)
}

// explainSwitch looks whether a failed creation lacked its switch; the error
// does not say so in any language that we know.
func (b *Backend) explainSwitch(ctx context.Context, err error) error {
	var e *powershell.Error
	if !errors.As(err, &e) || e.Command != "Connect-VMNetworkAdapter" {
		return err
	}
	h, herr := b.askHost(ctx)
	if herr != nil || h.hasSwitch(b.c.SwitchName) {
		return err
	}
	return fault.Wrap(err, fault.BackendUnavailable, "there is no virtual switch %q", b.c.SwitchName).
		Next("set HYPERV_SWITCH_NAME to one of: %s", h.switchNames())
}
