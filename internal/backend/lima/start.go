//go:build unix

package lima

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// starterFile has the pid of the limactl that starts a VM, which leads a process
// group of its own.
const starterFile = "start.pid"

// emulated is how Lima's QEMU is told not to take KVM.
const emulated = "QEMU_SYSTEM_X86_64=qemu-system-x86_64 -machine q35,vmport=off -accel tcg,thread=multi,tb-size=512 -cpu max"

// Start implements backend.Backend. It returns when the hypervisor runs; limactl
// goes on until the guest is up, and what it says then is in start.log.
func (b *Backend) Start(ctx context.Context, name string, o backend.StartOptions) (backend.Machine, error) {
	if err := backend.CheckName(name); err != nil {
		return nil, err
	}
	lock, err := b.operate(ctx, name)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	r, err := b.record(name)
	if errors.Is(err, errHalf) {
		return nil, broken(name, err.Error())
	}
	if err != nil {
		return nil, err
	}
	m, err := b.start(ctx, lock, r.Spec, o)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// start starts an instance with the record of s; the caller has the lock of the
// operation.
func (b *Backend) start(ctx context.Context, lock *os.File, s backend.Spec, o backend.StartOptions) (_ *machine, err error) {
	owner, err := b.own(s.Name)
	if err != nil {
		return nil, err
	}
	if owner == nil {
		return nil, running(s.Name)
	}
	defer func() {
		if err != nil {
			owner.Close()
		}
	}()
	l, err := b.settle(ctx, lock, s.Name)
	if err != nil {
		return nil, err
	}
	if err := b.verify(l, s); err != nil {
		return nil, err
	}
	o.Progress.Report("starting", "starting the Lima instance "+s.Name)
	dir, instance := b.dir(s.Name), b.instanceDir(s.Name)
	for _, f := range []string{filepath.Join(dir, endFile), filepath.Join(instance, "ssh.config")} {
		// An earlier start's must not be taken for this one's.
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	starter, err := b.launch(s, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
			defer cancel()
			// A host agent that limactl has begun and that has not said its
			// pid yet would be missed: let it come so far.
			patience, stop := context.WithTimeout(undo, undoLaunch)
			b.awaitLaunch(patience, s, starter) //nolint:errcheck // looked at next
			stop()
			starter.kill()
			if serr := b.stopForced(undo, s.Name); serr != nil {
				err = errors.Join(err, serr)
			}
		}
	}()
	p, err := b.awaitLaunch(ctx, s, starter)
	if err != nil {
		return nil, err
	}
	return newMachine(b, s, o, l, owner, starter, p), nil
}

// settle returns the instance when it is fit for a start: there, and nothing of
// an earlier life left. A host agent whose hypervisor was killed takes a moment
// to go.
func (b *Backend) settle(ctx context.Context, lock *os.File, name string) (listed, error) {
	forced := false
	for deadline := time.Now().Add(3 * time.Second); ; {
		l, ok, err := b.instance(ctx, name)
		switch {
		case err != nil:
			return l, err
		case !ok:
			return l, broken(name, "its Lima instance is gone")
		case l.running():
			return l, running(name)
		case l.HostAgentPID == 0 && l.DriverPID == 0 && (l.Status != statusBroken || forced):
			if l.Status == statusBroken {
				return l, broken(name, printable(strings.Join(l.Errors, "; ")))
			}
			return l, nil
		case l.orphaned() || l.Status == statusBroken && l.HostAgentPID == 0 || time.Now().After(deadline):
			if forced {
				return l, broken(name, "what is left of an earlier start does not end")
			}
			if err := b.stopForced(ctx, name); err != nil {
				return l, err
			}
			forced = true
		}
		select {
		case <-time.After(pollPause):
		case <-ctx.Done():
			return listed{}, context.Cause(ctx)
		}
	}
}

// stopForced ends what runs of an instance, and returns when it is gone.
func (b *Backend) stopForced(ctx context.Context, name string) error {
	dir := b.instanceDir(name)
	p := lookPIDs(dir)
	_, err := b.run(ctx, forceLimit, nil, "stop", "--force", "--tty=false", "--", name)
	if err != nil {
		b.log.Debug("limactl stop --force", "name", name, "error", err)
	}
	if err := killAll(ctx, dir); err != nil {
		return err
	}
	return awaitGone(ctx, forceLimit, p.hostAgent, p.driver)
}

// starter is a limactl start.
type starter struct {
	cmd  *exec.Cmd
	done chan struct{} // it has ended
	err  error         // valid then
	log  string
}

func (s *starter) kill() {
	select {
	case <-s.done: // its number may be another's
		return
	default:
	}
	syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) //nolint:errcheck // it may have ended
	<-s.done
}

// launch starts limactl start. Its host agent leaves its process group, and
// stays when it ends.
func (b *Backend) launch(s backend.Spec, o backend.StartOptions) (*starter, error) {
	path, err := b.program()
	if err != nil {
		return nil, err
	}
	dir := b.dir(s.Name)
	log, err := os.OpenFile(filepath.Join(dir, startLog), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(path, "start", "--tty=false", "--timeout", startPatience, "--", s.Name)
	cmd.Dir = "/"
	cmd.Env = b.environ()
	if accel := o.Accel; (accel == "tcg" || b.cfg.Accel == "tcg") && os.Getenv("QEMU_SYSTEM_X86_64") == "" {
		cmd.Env = b.environ(emulated)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fault.Wrap(err, fault.BackendCommandFailed, "limactl cannot be started")
	}
	st := &starter{cmd: cmd, done: make(chan struct{}), log: filepath.Join(dir, startLog)}
	go func() { // ends with the process
		st.err = cmd.Wait()
		os.Remove(filepath.Join(dir, starterFile))
		close(st.done)
	}()
	if err := os.WriteFile(filepath.Join(dir, starterFile), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		st.kill()
		return nil, err
	}
	return st, nil
}

// undoLaunch is how long a start that is given up may take to come so far that
// all of it can be ended.
const undoLaunch = 10 * time.Second

// startPatience is limactl's own bound on the boot; the owner's is tighter.
const startPatience = "30m"

// endStarter ends a limactl start that its caller left behind.
func endStarter(dir string) {
	pid := livePID(filepath.Join(dir, starterFile))
	if pid == 0 {
		return
	}
	if group, err := syscall.Getpgid(pid); err == nil && group == pid {
		syscall.Kill(-pid, syscall.SIGKILL) //nolint:errcheck // it may have ended
	}
}

// awaitLaunch waits until both processes of the VM run.
func (b *Backend) awaitLaunch(ctx context.Context, s backend.Spec, st *starter) (pids, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, launchLimit, errSlow)
	defer cancel()
	tick := time.NewTicker(pollPause)
	defer tick.Stop()
	what := fmt.Sprintf("the Lima instance %s does not start", s.Name)
	for {
		if p := lookPIDs(b.instanceDir(s.Name)); p.hostAgent != 0 && p.driver != 0 {
			return p, nil
		}
		select {
		case <-st.done:
			if p := lookPIDs(b.instanceDir(s.Name)); p.hostAgent != 0 && p.driver != 0 {
				return p, nil
			}
			said, _ := os.ReadFile(st.log)
			return pids{}, explain(&commandError{args: []string{"start"}, code: st.cmd.ProcessState.ExitCode(), stderr: tail(string(said), 64<<10)}, what)
		case <-tick.C:
		case <-ctx.Done():
			return pids{}, explain(context.Cause(ctx), what)
		}
	}
}
