//go:build unix

package lima

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// Backend implements backend.Backend.
type Backend struct {
	cfg Config
	log *slog.Logger
}

var (
	_ backend.Backend  = (*Backend)(nil)
	_ backend.Preparer = (*Backend)(nil)
)

// New makes a Backend. It makes and starts nothing: a host without limactl is
// not to have directories for it.
func New(c Config) (*Backend, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Backend{cfg: c, log: c.Logger}, nil
}

// Name implements backend.Backend.
func (b *Backend) Name() string { return "lima" }

// Capabilities implements backend.Backend. The guest reaches the host's loopback
// at 192.168.5.2, which Lima has no switch for.
func (b *Backend) Capabilities() backend.Capabilities {
	return backend.Capabilities{HostLoopbackReachable: true, DiskGrowth: true}
}

// Create implements backend.Backend. Where Prepare has made a base, the instance
// is a clone of it.
func (b *Backend) Create(ctx context.Context, s backend.Spec) error {
	if err := b.cfg.checkSpec(s); err != nil {
		return err
	}
	lock, err := b.operate(ctx, s.Name)
	if err != nil {
		return err
	}
	defer lock.Close()
	r, err := b.record(s.Name)
	switch {
	case err == nil && r.Spec == s:
		return nil
	case err == nil:
		return fault.Wrap(backend.ErrExists, fault.InvalidArgument, "the VM %s exists with another specification", s.Name).
			Next("use another name, or delete it")
	case errors.Is(err, errHalf):
		if err := b.remove(ctx, lock, s.Name); err != nil {
			return err
		}
	}
	if err := b.make(ctx, lock, s); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		if uerr := b.remove(undo, lock, s.Name); uerr != nil {
			b.log.Warn("a VM that was not made is not removed yet", "name", s.Name, "error", uerr)
		}
		return err
	}
	return nil
}

// make makes the record, the instance, and the record whole.
func (b *Backend) make(ctx context.Context, lock *os.File, s backend.Spec) error {
	if err := os.Mkdir(b.dir(s.Name), 0o700); err != nil {
		return err
	}
	r := vmRecord{Version: recordVersion, Spec: s, CreatedAt: time.Now().UTC()}
	path := filepath.Join(b.dir(s.Name), vmFile)
	if err := writeJSON(path, r); err != nil {
		return err
	}
	if err := b.makeInstance(ctx, lock, s); err != nil {
		return err
	}
	l, ok, err := b.instance(ctx, s.Name)
	if err != nil {
		return err
	}
	if !ok {
		return fault.New(fault.BackendCommandFailed, "limactl made the instance %s and does not list it", s.Name)
	}
	if err := b.verify(l, s); err != nil {
		return err
	}
	r.Whole = true
	return writeJSON(path, r)
}

// makeInstance clones the base, or else makes an instance of the template. An
// instance without a record, of which nobody knows what it is, goes first.
func (b *Backend) makeInstance(ctx context.Context, lock *os.File, s backend.Spec) error {
	if _, err := os.Lstat(b.instanceDir(s.Name)); !errors.Is(err, fs.ErrNotExist) {
		if err := b.removeInstance(ctx, lock, s.Name); err != nil {
			return err
		}
	}
	if base, ok := b.readyBase(ctx, s); ok {
		_, err := b.run(ctx, cloneLimit, lock, append(append([]string{"clone", "--tty=false"}, sizes(s)...), "--", base, s.Name)...)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		b.log.Warn("the base cannot be cloned, making the VM of its template", "base", base, "error", err)
		if err := b.removeInstance(ctx, lock, s.Name); err != nil {
			return err
		}
	}
	return b.fromTemplate(ctx, lock, s)
}

func (b *Backend) fromTemplate(ctx context.Context, lock *os.File, s backend.Spec) error {
	args := append([]string{"create", "--tty=false", "--name", s.Name, "--plain", "--mount-none"}, sizes(s)...)
	if s.VMType != "" {
		args = append(args, "--vm-type", s.VMType)
	}
	if s.Arch != "" {
		args = append(args, "--arch", limaArch(s.Arch))
	}
	_, err := b.run(ctx, createLimit, lock, append(args, "--", s.Template)...)
	return explain(err, fmt.Sprintf("the Lima instance %s cannot be made of %s", s.Name, s.Template))
}

// sizes are the options of create and clone for what a Spec asks for, with the
// isolation once more: a clone's source was made by us and is not trusted.
func sizes(s backend.Spec) []string {
	set := closed + fmt.Sprintf(" | .memory = %q", mebibytes(s.MemoryMiB))
	if s.DiskBytes > 0 {
		set += fmt.Sprintf(" | .disk = %q", mebibytes(wholeMiB(s.DiskBytes)))
	}
	return []string{"--cpus", strconv.Itoa(s.CPUs), "--set", set}
}

// Inspect implements backend.Backend.
func (b *Backend) Inspect(ctx context.Context, name string) (backend.Info, error) {
	if err := backend.CheckName(name); err != nil {
		return backend.Info{}, err
	}
	all, err := b.instances(ctx, name)
	if err != nil {
		return backend.Info{}, err
	}
	info, ok := b.info(name, all)
	if !ok {
		return info, notFound(name)
	}
	return info, nil
}

// List implements backend.Backend: VMs with a record, and instances without one,
// except the bases.
func (b *Backend) List(ctx context.Context) ([]backend.Info, error) {
	entries, err := os.ReadDir(b.cfg.StateDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	all, err := b.instances(ctx, "")
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var infos []backend.Info
	add := func(name string) {
		if seen[name] || backend.CheckName(name) != nil || isBase(name) {
			return
		}
		seen[name] = true
		if info, ok := b.info(name, all); ok {
			infos = append(infos, info)
		}
	}
	for _, e := range entries {
		if e.IsDir() {
			add(e.Name())
		}
	}
	for _, l := range all {
		add(l.Name)
	}
	return infos, nil
}

// info is a VM as its record and limactl's listing describe it; false if there
// is neither.
func (b *Backend) info(name string, all []listed) (backend.Info, bool) {
	info := backend.Info{Name: name, State: backend.Stopped, Dir: b.dir(name)}
	r, err := b.record(name)
	var l listed
	for _, x := range all {
		if x.Name == name {
			l = x
		}
	}
	switch {
	case errors.Is(err, backend.ErrNotFound) && l.Name == "":
		return info, false
	case errors.Is(err, backend.ErrNotFound):
		info.State, info.Detail, info.Dir = backend.Broken, "a Lima instance that has no record", b.instanceDir(name)
	case err != nil:
		info.State, info.Detail = backend.Broken, err.Error()
	case l.Name == "":
		info.State, info.Detail = backend.Broken, "its Lima instance is gone"
	case l.running():
		info.State, info.SSHPort, info.PID, info.Accelerator = backend.Running, l.SSHLocalPort, l.DriverPID, b.accelerator(r.Spec, l)
		if st, err := os.Stat(filepath.Join(b.dir(name), startLog)); err == nil {
			info.StartedAt = st.ModTime().UTC()
		}
	case l.orphaned():
		info.State, info.Detail, info.PID = backend.Broken, "Lima's host agent is gone, and its hypervisor runs", l.DriverPID
	case l.Status == statusBroken && l.HostAgentPID == 0 && len(l.Errors) > 0:
		info.State, info.Detail = backend.Broken, printable(l.Errors[0])
	}
	info.DiskUsed = allocated(b.instanceDir(name))
	return info, true
}

// accelerator is what Lima takes: KVM wherever its device is, unless the
// environment says otherwise.
func (b *Backend) accelerator(s backend.Spec, l listed) string {
	switch {
	case b.cfg.Accel == "tcg":
		return "tcg"
	case l.VMType == "vz" || runtime.GOOS == "darwin":
		return "hvf"
	case l.Arch != "" && l.Arch != limaArch(runtime.GOARCH):
		return "tcg"
	}
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return "tcg"
	}
	return "kvm"
}

// Delete implements backend.Backend.
func (b *Backend) Delete(ctx context.Context, name string) error {
	if err := backend.CheckName(name); err != nil {
		return err
	}
	if _, err := os.Lstat(b.cfg.StateDir); errors.Is(err, fs.ErrNotExist) {
		return context.Cause(ctx) // nothing was ever made here
	}
	lock, err := b.operate(ctx, name)
	if err != nil {
		return err
	}
	defer lock.Close()
	return b.remove(ctx, lock, name)
}

// remove takes the instance away, then the record.
func (b *Backend) remove(ctx context.Context, lock *os.File, name string) error {
	dir := b.dir(name)
	if st, err := os.Lstat(dir); err == nil && st.IsDir() {
		// Its owner reads this when it sees the end.
		if err := os.WriteFile(filepath.Join(dir, endFile), nil, 0o600); err != nil {
			return err
		}
		endStarter(dir)
	}
	if err := b.removeInstance(ctx, lock, name); err != nil {
		return err
	}
	if st, err := os.Lstat(dir); err != nil || !st.IsDir() {
		return nil
	}
	return os.RemoveAll(dir)
}

// removeInstance takes an instance away, running or not, whole or not. What
// limactl does not do in time or does not know is done by hand.
func (b *Backend) removeInstance(ctx context.Context, lock *os.File, name string) error {
	dir := b.instanceDir(name)
	if st, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) || err == nil && !st.IsDir() {
		return nil
	}
	p := lookPIDs(dir)
	_, err := b.run(ctx, forceLimit, lock, "delete", "--force", "--tty=false", "--", name)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		b.log.Warn("limactl does not delete an instance, doing it by hand", "name", name, "error", err)
	}
	// limactl does not wait for what it kills.
	kerr := killAll(ctx, dir)
	if kerr == nil {
		kerr = awaitGone(ctx, forceLimit, p.hostAgent, p.driver)
	}
	if kerr != nil {
		return errors.Join(kerr, explain(err, fmt.Sprintf("the Lima instance %s cannot be deleted", name)))
	}
	return os.RemoveAll(dir)
}

// Probe implements backend.Backend.
func (b *Backend) Probe(ctx context.Context, p backend.Progress) (backend.Report, error) {
	p.Report("probe", "asking limactl for its version")
	var r backend.Report
	fatal := func(what, fix string) {
		r.Problems = append(r.Problems, backend.Problem{What: what, Fix: fix, Fatal: true})
	}
	out, err := b.run(ctx, queryLimit, nil, "--version")
	var f *fault.Error
	switch {
	case ctx.Err() != nil:
		return r, context.Cause(ctx)
	case errors.As(explain(err, "limactl does not run"), &f):
		fix := installHint
		if len(f.NextSteps) > 0 {
			fix = f.NextSteps[0]
		}
		fatal(f.Error(), fix)
		return r, nil
	}
	v := parseVersion(string(out))
	r.Version = v.text
	if v.known && v.major < 2 {
		fatal(fmt.Sprintf("limactl %s is too old: it takes neither plain clones nor templates by the names of version 2", v.text), installHint)
	}
	if len(b.cfg.LimaHome) > MaxHome {
		fatal(fmt.Sprintf("the directory %s is too long for the sockets in it (%d bytes of %d)", b.cfg.LimaHome, len(b.cfg.LimaHome), MaxHome),
			"set SANDBOXFORGE_HOME to a shorter directory")
	}
	if _, err := exec.LookPath("ssh"); err != nil {
		fatal("there is no ssh, which Lima needs", "install the package openssh-client")
	}
	if runtime.GOOS == "linux" {
		qemu := map[string]string{"amd64": "qemu-system-x86_64", "arm64": "qemu-system-aarch64"}[runtime.GOARCH]
		if _, err := exec.LookPath(qemu); err != nil && os.Getenv("QEMU_SYSTEM_X86_64") == "" {
			fatal("there is no "+qemu+", which Lima needs on Linux", "apt-get install qemu-system ovmf, or your distribution's equal")
		}
	}
	if b.cfg.Accel == "kvm" && runtime.GOOS != "linux" || b.cfg.Accel == "hvf" && runtime.GOOS != "darwin" {
		fatal("SANDBOX_ACCEL="+b.cfg.Accel+" is not of this system", "set SANDBOX_ACCEL to auto")
	}
	if _, err := b.run(ctx, queryLimit, nil, "list", "--format", "json"); err != nil {
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
		f := fault.From(explain(err, "limactl cannot list the VMs"))
		fatal(f.Error(), append(f.NextSteps, "run `LIMA_HOME="+b.cfg.LimaHome+" limactl list` and mend what it says")[0])
	}
	r.Accelerator = b.accelerator(backend.Spec{}, listed{})
	r.Evidence = []string{"Lima chooses the accelerator: " + r.Accelerator + " is what it takes on this host."}
	r.Usable = len(r.Problems) == 0
	return r, nil
}

// allocated is what a directory's files take on the disk.
func allocated(dir string) (n int64) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if i, err := e.Info(); err == nil && i.Mode().IsRegular() {
			n += blocks(i)
		}
	}
	return n
}
