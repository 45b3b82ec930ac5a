package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxforge/internal/config"
	"sandboxforge/internal/supervisor"
)

func contextFor(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

// pidOf finds a process by two pieces of its command line.
func pidOf(program, piece string) int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		cmd, err := os.ReadFile(filepath.Join(d, "cmdline"))
		if err == nil && strings.Contains(string(cmd), program) && strings.Contains(string(cmd), piece) {
			pid, _ := strconv.Atoi(filepath.Base(d))
			if pid != os.Getpid() {
				return pid
			}
		}
	}
	return 0
}

func vmName(instance string) string { return "agent-" + strings.TrimPrefix(instance, "inst_") }

// qemuPID is the hypervisor process of an instance, 0 if there is none.
func (s *state) qemuPID(instance string) int { return pidOf("qemu-system", vmName(instance)) }

// supervisorPID is the supervisor process of an instance, 0 if there is none.
func (s *state) supervisorPID(instance string) int { return pidOf("__supervise", vmName(instance)) }

// watch opens a process so that its end is an event. Call the result to wait.
func watch(t testing.TB, pid int) (ended func(within time.Duration)) {
	t.Helper()
	if pid == 0 {
		t.Fatal("no such process")
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("pidfd of %d: %v", pid, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return func(within time.Duration) {
		t.Helper()
		deadline := time.Now().Add(within)
		for {
			left := time.Until(deadline)
			if left <= 0 {
				t.Fatalf("process %d still runs after %v", pid, within)
			}
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
			if err == nil && n == 1 {
				return
			}
			if err != nil && err != unix.EINTR {
				t.Fatal(err)
			}
		}
	}
}

func kill(t testing.TB, pid int) {
	t.Helper()
	if pid == 0 {
		t.Fatal("no such process")
	}
	t.Logf("kill -9 %d", pid)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// supervisorOf connects to the supervisor of an instance.
func supervisorOf(t testing.TB, st *state, instance string) *supervisor.Client {
	t.Helper()
	env := map[string]string{}
	for _, e := range st.env {
		k, v, _ := strings.Cut(e, "=")
		env[k] = v
	}
	settings, err := config.LoadSettings(func(k string) string { return env[k] }, "linux")
	if err != nil {
		t.Fatal(err)
	}
	run, err := settings.RunDir()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := contextFor(time.Minute)
	defer cancel()
	c, err := supervisor.Dial(ctx, run, vmName(instance))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// shortened gives an instance's supervisor an earlier deadline than its lease
// has, because no tool shortens a lease and the tests do not wait minutes.
func shortened(t testing.TB, st *state, instance string, left time.Duration) {
	t.Helper()
	ctx, cancel := contextFor(time.Minute)
	defer cancel()
	if err := supervisorOf(t, st, instance).SetDeadline(ctx, time.Now().Add(left)); err != nil {
		t.Fatal(err)
	}
}

func supervisorDeadline(t testing.TB, st *state, instance string) time.Time {
	t.Helper()
	ctx, cancel := contextFor(time.Minute)
	defer cancel()
	s, err := supervisorOf(t, st, instance).Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s.Deadline
}
