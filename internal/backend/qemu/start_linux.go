package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/host"
	"sandboxforge/internal/qmp"
)

// greetingLimit bounds the wait for QEMU's greeting, which it gives when the
// machine is built. It takes a fraction of a second on an idle host.
const greetingLimit = 30 * time.Second

// lastGasp is how long a QEMU that did not start may take to end by itself.
const lastGasp = time.Second

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
	if record.Spec.From != "" {
		o.Cautious = false // the machine is the state's
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
	if err := b.beginAnew(ctx, dir, record); err != nil {
		log.Close()
		return nil, diskFault(err, name)
	}
	o.Progress.Report("start", "starting QEMU with "+accel.String())
	m, state, err := b.machineOf(ctx, name, record, f, accel)
	if err != nil {
		log.Close()
		return nil, err
	}
	h := &handles{lock: lock, agent: agent, state: state}
	run, err := launch(bin, m, dir, h, log)
	if state != nil {
		state.Close()
	}
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
	if err == nil && m.load {
		if err = b.load(ctx, control, record.DiskFrom, record.DiskBytes); err != nil {
			control.Close()
		}
	}
	if err != nil {
		if ctx.Err() == nil {
			select { // what it dies of by itself says more than that it was killed
			case <-run.process.exited:
			case <-time.After(lastGasp):
			}
		}
		run.end()
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		out := run.log.text()
		code := fault.BackendCommandFailed
		if run.process.slain {
			code = fault.InsufficientHostResources
		}
		e := fault.Wrap(withShortage(err, out), code, "QEMU did not start the VM %s (%s)", name, run.process.state).With("qemu_output", out)
		if run.process.slain {
			e.Because("it was killed from outside, as the kernel does when memory runs out")
		}
		if line := firstLine([]byte(out)); line != "" {
			e.Because("%s", line)
		}
		return nil, e
	}
	b.c.Logger.Info("VM started", "vm", name, "pid", run.process.pid(), "accelerator", accel.String())
	return newVM(b, m, record, bin, run, control, backend.Info{
		Name: name, State: backend.Running, PID: run.process.pid(), Accelerator: accel.String(), Dir: dir, StartedAt: started,
	}), nil
}

// machineOf is the machine of a VM, and what it reads its saved state from if
// it begins in one.
func (b *Backend) machineOf(ctx context.Context, name string, r *vmRecord, f facts, accel accelerator) (machine, *os.File, error) {
	dir, s := b.dir(name), r.Spec
	m := machine{
		name: name, arch: r.Image.Arch, typ: f.Machine, accel: accel, cpus: s.CPUs,
		memory: memory{mib: s.MemoryMiB, file: filepath.Join(dir, memoryFile), share: s.MemoryFile},
		kernel: r.Image.Kernel, initrd: r.Image.Initrd,
		cmdline: kernelCmdline(r.Image.Cmdline+clockRate(r.Image.Arch, accel), s.Hostname), disk: r.disk(dir),
		network: true, agent: true, monitor: true, sandbox: f.Sandbox, noGeneration: b.noGeneration,
	}
	if s.From == "" {
		// A leftover of an attempt before would be another guest's memory.
		if err := os.Remove(m.memory.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return m, nil, err
		}
		return m, nil, nil
	}
	state, err := b.checkState(ctx, s.From)
	if err != nil {
		return m, nil, err
	}
	if state.Machine != m.typ || state.Accel != accel.name {
		return m, nil, unfit(nil, s.From, "it is of a machine %s under %s, not %s under %s", state.Machine, state.Accel, m.typ, accel)
	}
	m.memory = memory{mib: s.MemoryMiB, file: filepath.Join(s.From, stateMemory)}
	m.cmdline, m.load = state.Cmdline, true
	stream, err := stateStream(s.From)
	return m, stream, err
}

// clockRate tells the kernel the rate of its time stamp counter, which under
// emulation is the host's. A guest that measures it itself while the host is
// busy was seen to run its clock at seven times the time.
func clockRate(arch string, accel accelerator) string {
	if arch != "amd64" || accel.name != "tcg" {
		return ""
	}
	khz := host.TSCKilohertz()
	if khz == 0 {
		return ""
	}
	return fmt.Sprintf(" tsc_early_khz=%d", khz)
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
	if _, err := os.Stat(record.disk(dir)); err != nil {
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
