package qemu

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/qmp"
)

// greetingLimit bounds the wait for QEMU's greeting, which it gives when the
// machine is built. It takes a fraction of a second on an idle host.
const greetingLimit = 30 * time.Second

// Start implements backend.Backend.
func (b *Backend) Start(ctx context.Context, name string, o backend.StartOptions) (backend.Machine, error) {
	if err := backend.CheckName(name); err != nil {
		return nil, err
	}
	// The accelerator first: a trial takes seconds, during which Delete should
	// not have to wait for the operation lock.
	record, err := b.startable(name)
	if err != nil {
		return nil, err
	}
	accel, err := b.chooseAccel(ctx, record.Image, o)
	if err != nil {
		return nil, err
	}
	bin, err := b.binary(record.Image.Arch)
	if err != nil {
		return nil, err
	}
	f, err := b.facts(ctx, bin, record.Image.Arch)
	if err != nil {
		return nil, err
	}

	operation, err := b.lockName(ctx, name, nil)
	if err != nil {
		return nil, err
	}
	defer operation.Close()
	if record, err = b.startable(name); err != nil { // as it is now
		return nil, err
	}
	dir := b.dir(name)
	lock, err := openLock(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, err
	}
	defer lock.Close() // QEMU's copy goes on holding it
	if ok, err := tryLock(lock, wholeFile); err != nil {
		return nil, err
	} else if !ok {
		return nil, isRunningFault(name)
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	agent, err := listenAgent(b.agentSocket(name))
	if err != nil {
		return nil, fault.Wrap(err, fault.BackendCommandFailed, "cannot make the agent's socket of the VM %s", name)
	}
	defer agent.Close()
	log, err := newBoundedLog(filepath.Join(dir, logFile))
	if err != nil {
		return nil, diskFault(err, name)
	}
	o.Progress.Report("start", "starting QEMU with "+accel.String())
	s := record.Spec
	run, err := launch(bin, machine{
		name: name, arch: record.Image.Arch, typ: f.Machine, accel: accel, cpus: s.CPUs,
		memory: memory{mib: s.MemoryMiB}, kernel: record.Image.Kernel, initrd: record.Image.Initrd,
		cmdline: kernelCmdline(record.Image.Cmdline, s.Hostname), disk: filepath.Join(dir, diskFile),
		network: network{user: true}, agent: true, monitor: true, sandbox: f.Sandbox,
	}, dir, &handles{lock: lock, agent: agent}, log)
	if err != nil {
		log.Close()
		return nil, fault.Wrap(err, fault.BackendCommandFailed, "cannot start QEMU for the VM %s", name)
	}
	started := time.Now().UTC()
	ticks, err := startTicks(run.process.pid())
	if err == nil {
		err = writeJSON(filepath.Join(dir, runFile), runRecord{
			PID: run.process.pid(), StartTicks: ticks, Accel: accel.String(), StartedAt: started,
		}, false)
	}
	if err != nil {
		run.end()
		return nil, diskFault(err, name)
	}
	control, err := b.handshake(ctx, run)
	if err != nil {
		run.end()
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		out := run.log.text()
		e := fault.Wrap(err, fault.BackendCommandFailed, "QEMU did not start the VM %s (%s)", name, run.process.state).With("qemu_output", out)
		if line := firstLine([]byte(out)); line != "" {
			e.Because("%s", line)
		}
		return nil, e
	}
	b.c.Logger.Info("VM started", "vm", name, "pid", run.process.pid(), "accelerator", accel.String())
	return newVM(b, name, run, control, backend.Info{
		Name: name, State: backend.Running, PID: run.process.pid(), Accelerator: accel.String(), Dir: dir, StartedAt: started,
	}), nil
}

// handshake connects to QEMU's control channel, bounded by greetingLimit.
func (b *Backend) handshake(ctx context.Context, run *running) (*qmp.Client, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, greetingLimit, errors.New("QEMU did not answer in time"))
	defer cancel()
	return qmp.Connect(ctx, run.monitor)
}

func isRunningFault(name string) error {
	return fault.Wrap(backend.ErrRunning, fault.BackendCommandFailed, "the VM %s runs already", name)
}

// startable reads the record of a VM that is whole.
func (b *Backend) startable(name string) (*vmRecord, error) {
	dir := b.dir(name)
	record, err := readVM(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(dir); err == nil {
			return nil, fault.New(fault.BackendCommandFailed, "the VM %s is half-made", name).
				Because("the process that made or deleted it was interrupted").Next("delete it")
		}
		return nil, notFound(name)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.BackendCommandFailed, "the VM %s is damaged", name).Next("delete it")
	}
	if running, err := b.isRunning(name); err != nil {
		return nil, err
	} else if running {
		return nil, isRunningFault(name)
	}
	if _, err := os.Stat(filepath.Join(dir, diskFile)); err != nil {
		return nil, fault.Wrap(err, fault.BackendCommandFailed, "the disk of the VM %s is missing", name).Next("delete it")
	}
	return record, checkImage(record.Image)
}

// chooseAccel applies a start's options to what configuration or trial say.
func (b *Backend) chooseAccel(ctx context.Context, img Image, o backend.StartOptions) (accelerator, error) {
	switch o.Accel {
	case "", "auto":
	case "kvm", "tcg":
		return accelerator{name: o.Accel, singleThread: o.Cautious && o.Accel == "tcg"}, nil
	default:
		return accelerator{}, fault.New(fault.InvalidArgument, "accelerator %.40q: auto, kvm or tcg", o.Accel)
	}
	v, err := b.accelFor(ctx, img, o.Progress)
	return accelerator{name: v.Accel, singleThread: o.Cautious && v.Accel == "tcg"}, err
}

// listenAgent makes the socket on which QEMU takes the agent's stream. QEMU
// inherits it listening, so that a dial never comes too early.
func listenAgent(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	return l.File()
}
