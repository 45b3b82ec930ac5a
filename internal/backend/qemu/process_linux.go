package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// keeper runs functions on one thread that lives as long as this process. The
// kernel ties a parent-death signal to the thread that forked, so every QEMU
// is forked here: from any other goroutine the signal could fire when the
// runtime retires the thread.
var keeper = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

func onKeeper(f func() error) error {
	result := make(chan error)
	keeper() <- func() { result <- f() }
	return <-result
}

// process is a QEMU that this process started.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it is reaped and its output is read
	state  string        // how it ended; valid after exited
	// slain: it was killed, and not by this process; valid after exited.
	slain bool

	ours atomic.Bool // this process killed it
}

// startProcess starts QEMU with the given inherited descriptors (from 3 on).
// It dies with this process. Its output goes to log until it has exited.
func startProcess(path string, args []string, dir string, inherit []*os.File, log io.Writer) (*process, error) {
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	cmd.Env = toolEnv()
	cmd.Stdout, cmd.Stderr = log, log // stdin is /dev/null
	cmd.ExtraFiles = inherit
	cmd.WaitDelay = 5 * time.Second
	// The runtime's fork code closes the gap between fork and prctl: a child
	// that finds another parent by then kills itself.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := onKeeper(cmd.Start); err != nil {
		return nil, err
	}
	// A QEMU that crashes would write its guest's memory to the disk. The guest
	// has not run yet, and a process that is gone needs no limit.
	unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)
	p := &process{cmd: cmd, exited: make(chan struct{})}
	go func() {
		err := cmd.Wait()
		if errors.Is(err, exec.ErrWaitDelay) {
			err = nil
		}
		p.state = cmd.ProcessState.String()
		if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
			p.slain = w.Signaled() && w.Signal() == syscall.SIGKILL && !p.ours.Load()
		}
		close(p.exited)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill ends the process and what is left of its group. It does not wait.
func (p *process) kill() {
	select {
	case <-p.exited: // the group's number may be somebody else's by now
	default:
		p.ours.Store(true)
		syscall.Kill(-p.pid(), syscall.SIGKILL)
		p.cmd.Process.Kill()
	}
}

// cpuTime is the processor time that the process has used; what can't be read
// counts as none.
func (p *process) cpuTime() time.Duration {
	f, err := statFields(p.pid())
	if err != nil {
		return 0
	}
	user, err1 := strconv.ParseUint(f[11], 10, 64)
	system, err2 := strconv.ParseUint(f[12], 10, 64)
	if err1 != nil || err2 != nil {
		return 0
	}
	return time.Duration(user+system) * (time.Second / ticksPerSecond)
}

// ticksPerSecond is the unit of /proc: 100 on every Linux that this runs on.
const ticksPerSecond = 100

// startTicks is when a process started, in the kernel's ticks since boot; with
// the pid it identifies a process for good.
func startTicks(pid int) (uint64, error) {
	f, err := statFields(pid)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// statFields are the fields of /proc/PID/stat from the third on, 20 at least.
func statFields(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	// The second field is a name in parentheses that may contain anything.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 20 {
		return nil, fmt.Errorf("/proc/%d/stat is malformed", pid)
	}
	return f, nil
}

// hasOpen reports whether a process has the given file open.
func hasOpen(pid int, file os.FileInfo) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false // gone, or not ours
	}
	for _, e := range entries {
		if st, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && os.SameFile(st, file) {
			return true
		}
	}
	return false
}

// holders finds the processes other than this one that have a file open.
func holders(file os.FileInfo) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != os.Getpid() && hasOpen(pid, file) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// killForeign kills a process that still is the one meant, as confirm says
// once a handle pins the pid, and waits until it has ended.
func killForeign(ctx context.Context, pid int, confirm func() bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	unix.SetNonblock(fd, true) // makes the runtime's poller wait for it
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	if !confirm() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill %d: %w", pid, err)
	}
	return waitPidfd(ctx, f)
}

// waitPidfd blocks until the process of a non-blocking pidfd has ended.
func waitPidfd(ctx context.Context, f *os.File) error {
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	err = rc.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, _ := unix.Poll(p, 0)
		return n > 0
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}
