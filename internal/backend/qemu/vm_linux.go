package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/qmp"
)

// vm is a running VM as its owner sees it.
type vm struct {
	b       *Backend
	name    string
	info    backend.Info // as it was started
	run     *running
	control *qmp.Client

	done chan struct{}
	exit backend.Exit // valid after done

	mu       sync.Mutex
	stopping bool
	stream   net.Conn // the agent's, if one is open
	wired    bool     // the network's stream was handed out

	bin     string
	accel   accelerator
	memory  string // file that the guest's memory is a mapping of
	cmdline string

	flat flattener

	saving sync.Mutex // held by Save, which has the rest
	node   string     // block node that the guest writes to
	saves  int        // how often it was to get a new one
	unsure bool       // nobody knows which disk the guest writes to
	jobbed bool       // what became of a flattening is not known; see settleFlattening
	// record is what QEMU does. vm.json may lag behind: a full disk can keep it
	// from being written when the guest has its new disk already.
	record *vmRecord

	halted chan time.Time // capacity 1: when QEMU stopped the guest; a save empties it before it asks

	dialling chan struct{} // capacity 1: held while a stream takes another's place
}

var (
	_ backend.Machine     = (*vm)(nil)
	_ backend.BootWatcher = (*vm)(nil)
	_ backend.Wired       = (*vm)(nil)
	_ backend.Saver       = (*vm)(nil)
)

func newVM(b *Backend, m machine, record *vmRecord, bin string, run *running, control *qmp.Client, info backend.Info) *vm {
	v := &vm{
		b: b, name: m.name, info: info, run: run, control: control, node: rootNode, record: record,
		bin: bin, accel: m.accel, memory: m.memory.file, cmdline: m.cmdline,
		done: make(chan struct{}), dialling: make(chan struct{}, 1), halted: make(chan time.Time, 1),
	}
	go v.watch()
	v.startFlattening()
	return v
}

// lastWords is how long QEMU may take to end after its control channel did.
// One that stays is not under control any more.
const lastWords = 10 * time.Second

// watch owns the QEMU process until it has ended; done is its last act.
func (v *vm) watch() {
	defer close(v.done)
	var reason string
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	full := make(chan struct{}, 1)
	wg.Go(func() { v.resume(ctx, full) })
	for e := range v.control.Events() {
		if diskFull(e) {
			select {
			case full <- struct{}{}:
			default: // told already
			}
		}
		if e.Name == "STOP" {
			select {
			case v.halted <- e.At:
			default: // nobody asks
			}
		}
		if e.Name == "SHUTDOWN" {
			var d struct{ Reason string }
			if json.Unmarshal(e.Data, &d) == nil && d.Reason != "" {
				reason = d.Reason
			}
		}
	}
	late := time.NewTimer(lastWords)
	defer late.Stop()
	select {
	case <-v.run.process.exited:
	case <-late.C:
		v.b.c.Logger.Error("QEMU lost its control channel and is killed", "vm", v.name, "pid", v.run.process.pid())
		v.run.process.kill()
	}
	v.run.wait()
	v.control.Close()
	v.endFlattening()
	v.stopFlattening()
	v.mu.Lock()
	stopping := v.stopping
	if v.stream != nil {
		v.stream.Close()
	}
	v.mu.Unlock()
	v.exit = v.judge(reason, stopping)
	v.b.c.Logger.Info("VM ended", "vm", v.name, "pid", v.run.process.pid(), "reason", v.exit.Reason, "detail", v.exit.Detail)
}

// judge puts together how the VM ended from what QEMU said last, what the
// console shows and who wanted it.
func (v *vm) judge(reason string, stopping bool) backend.Exit {
	e := backend.Exit{At: time.Now().UTC()}
	_, missing := os.Stat(filepath.Join(v.b.dir(v.name), vmFile))
	tail := v.run.console.newest(consoleMemory)
	switch {
	case stopping:
		e.Reason = backend.ExitStopped
	case errors.Is(missing, os.ErrNotExist):
		e.Reason, e.Detail = backend.ExitStopped, "the VM was deleted"
	case reason == "guest-panic" || reason == "guest-reset" && bytes.Contains(tail, []byte(panicText)):
		e.Reason, e.Detail = backend.ExitGuestPanic, v.run.console.sign()
	case reason == "guest-reset":
		e.Reason = backend.ExitGuestReset
	case reason == "guest-shutdown":
		e.Reason, e.Detail = backend.ExitGuestOff, v.run.console.sign()
	default:
		e.Reason, e.Detail = backend.ExitHypervisorDied, v.run.process.state
		out := v.run.log.text()
		if out != "" {
			e.Detail += ": " + lastLines([]byte(out), 500)
		}
		e.Starved = v.run.process.slain || errors.Is(shortageIn(out), syscall.ENOMEM)
	}
	return e
}

// DialAgent implements backend.Machine.
func (v *vm) DialAgent(ctx context.Context) (io.ReadWriteCloser, error) {
	select {
	case v.dialling <- struct{}{}:
		defer func() { <-v.dialling }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-v.done:
		return nil, v.notRunning()
	}
	// QEMU serves one connection; the next waits until it has seen the end of
	// the one before.
	v.mu.Lock()
	if v.stream != nil {
		v.stream.Close()
		v.stream = nil
	}
	v.mu.Unlock()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", v.b.agentSocket(v.name))
	if err != nil {
		select {
		case <-v.done:
			return nil, v.notRunning()
		default:
		}
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, fault.Wrap(err, fault.BackendCommandFailed, "cannot reach the agent's port of the VM %s", v.name)
	}
	v.mu.Lock()
	v.stream = c
	v.mu.Unlock()
	select {
	case <-v.done: // watch may have looked before the stream was there
		c.Close()
		return nil, v.notRunning()
	default:
		return c, nil
	}
}

func (v *vm) notRunning() error {
	return fault.Wrap(backend.ErrNotRunning, fault.InstanceLost, "the VM %s has ended (%s)", v.name, v.exit.Reason)
}

// DialNetwork implements backend.Wired.
func (v *vm) DialNetwork(context.Context) (net.Conn, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.wired {
		return nil, fault.New(fault.Internal, "the network of the VM %s is served already", v.name)
	}
	v.wired = true
	return v.run.network, nil
}

// Done implements backend.Machine.
func (v *vm) Done() <-chan struct{} { return v.done }

// Exit implements backend.Machine.
func (v *vm) Exit() backend.Exit {
	select {
	case <-v.done:
		return v.exit
	default:
		return backend.Exit{}
	}
}

// quitLimit is how long QEMU may take to leave when it is told to.
const quitLimit = 2 * time.Second

// Stop implements backend.Machine. The polite way is the ACPI power button,
// which the guest must listen to.
func (v *vm) Stop(ctx context.Context, grace time.Duration) error {
	v.mu.Lock()
	v.stopping = true
	v.mu.Unlock()
	v.endFlattening()
	if grace > 0 {
		polite, cancel := context.WithTimeout(ctx, grace)
		if v.control.Do(polite, "system_powerdown", nil, nil) == nil {
			select {
			case <-v.done:
			case <-polite.Done():
			}
		}
		cancel()
	}
	if ctx.Err() == nil {
		// quit writes what QEMU still holds of the disk's metadata.
		quit, cancel := context.WithTimeout(ctx, quitLimit)
		if v.control.Do(quit, "quit", nil, nil) == nil {
			select {
			case <-v.done:
			case <-quit.Done():
			}
		}
		cancel()
	}
	v.run.process.kill()
	<-v.done
	return nil
}

// Info implements backend.Machine.
func (v *vm) Info() backend.Info {
	info, err := v.b.inspect(v.name)
	if err != nil { // deleted
		info = v.info
		info.State = backend.Stopped
		select {
		case <-v.done:
		default:
			info.State = backend.Running
		}
	}
	return info
}

// Console implements backend.Machine. At most the newest 64 KiB are kept.
func (v *vm) Console(max int) []byte { return v.run.console.newest(max) }

// A guest that boots may print nothing for long: a good boot is quiet, and slow
// on a busy host. So it counts as hung only when it has used the processor for
// this long without a word, which tells one that spins from one that starves;
// or has been silent for a multiple of it, which is all there is to see of one
// that sleeps.
const (
	kvmSilence    = 30 * time.Second
	tcgSilence    = 60 * time.Second
	sleepMultiple = 4
)

// WatchBoot implements backend.BootWatcher.
func (v *vm) WatchBoot(ctx context.Context) error {
	limit := v.b.limits.tcgSilence
	if v.info.Accelerator == "kvm" {
		limit = v.b.limits.kvmSilence
	}
	failed := func(format string, a ...any) error {
		detail := fmt.Sprintf(format, a...)
		return fault.Wrap(fmt.Errorf("%w: %s", backend.ErrBootFailed, detail), fault.RuntimeNotReady, "the VM %s does not come up", v.name).
			Because("%s", detail).Next("try again: emulated boots fail now and then")
	}
	spoke := v.run.console.lastOutput()
	used := v.run.process.cpuTime()
	look := time.NewTicker(min(time.Second, max(limit/5, time.Millisecond)))
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-v.done:
			if v.exit.Detail == "" {
				return failed("the VM ended: %s", v.exit.Reason)
			}
			return failed("the VM ended: %s, %s", v.exit.Reason, v.exit.Detail)
		case <-v.run.console.failed:
			return failed("the console shows: %s", v.run.console.sign())
		case <-look.C:
		}
		if at := v.run.console.lastOutput(); at != spoke {
			spoke, used = at, v.run.process.cpuTime()
			continue
		}
		silent, busy := time.Since(spoke), v.run.process.cpuTime()-used
		if silent >= limit && busy >= limit || silent >= sleepMultiple*limit {
			return failed("the console was silent for %.0f s, of which the guest used the processor %.0f s", silent.Seconds(), busy.Seconds())
		}
	}
}
