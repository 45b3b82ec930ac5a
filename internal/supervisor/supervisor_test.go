//go:build unix

package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest/guestv1"
)

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// launch starts a supervisor and waits until its VM is ready.
func launch(t testing.TB, o Options) *Client {
	t.Helper()
	ctx := testContext(t)
	c, err := Launch(ctx, o, nil)
	if err != nil {
		t.Fatalf("Launch: %v", err)
	}
	t.Cleanup(c.Close)
	if err := c.WaitReady(ctx, nil); err != nil {
		t.Fatalf("WaitReady: %v", err)
	}
	return c
}

// awaitEnd waits for the record of the end.
func awaitEnd(t testing.TB, o Options) *End {
	t.Helper()
	awaitGone(t, o.Dir)
	end, err := ReadEnd(o.Dir)
	if err != nil {
		t.Fatalf("ReadEnd: %v", err)
	}
	if _, err := os.Lstat(socketPath(o.RunDir, o.Spec.Name)); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
	return end
}

func trace(t testing.TB, o Options) string {
	t.Helper()
	var b fakeBackend
	json.Unmarshal(o.Backend.Config, &b)
	s, _ := os.ReadFile(b.Trace)
	return string(s)
}

func TestLife(t *testing.T) {
	o := testOptions(t, &fakeBackend{GrowRoot: true})
	ctx := testContext(t)
	var stages []string
	c, err := Launch(ctx, o, func(stage, _ string) { stages = append(stages, stage) })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.WaitReady(ctx, func(stage, _ string) { stages = append(stages, stage) }); err != nil {
		t.Fatal(err)
	}
	if len(stages) < 2 || stages[0] != "starting" || stages[len(stages)-1] != "ready" {
		t.Errorf("stages: %q", stages)
	}
	st, err := c.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if st.State != StateReady || !st.AgentConnected || st.BootID != "boot-1" || st.Accelerator != "fake" ||
		st.PID != c.Hello().PID || st.VMPID == 0 || st.BootAttempts != 1 || st.ReadyAt.IsZero() || !st.Deadline.Equal(o.Deadline) {
		t.Errorf("status: %+v", st)
	}
	for _, k := range []string{"start", "agent", "prepare", "total"} {
		if _, ok := st.Timings[k]; !ok {
			t.Errorf("no timing %q: %v", k, st.Timings)
		}
	}
	if b, err := c.Console(ctx, 9); err != nil || string(b) != "ersion 6\r\n"[1:] {
		t.Errorf("console: %q, %v", b, err)
	}
	for _, want := range []string{"start 1 cautious=false\n", "identity box machine-id=32 entropy=64 clock=true\n", "grow\n", "backstop 61\n"} {
		if !strings.Contains(trace(t, o), want) {
			t.Errorf("the guest was not told %q", want)
		}
	}
	for _, f := range []struct {
		path string
		mode os.FileMode
	}{{o.Dir, 0o700}, {o.RunDir, 0o700}, {socketPath(o.RunDir, "vm-1"), 0o600}, {filepath.Join(o.Dir, specFile), 0o600}, {filepath.Join(o.Dir, logFile), 0o600}} {
		if fi, err := os.Stat(f.path); err != nil || fi.Mode().Perm() != f.mode {
			t.Errorf("%s: mode %v, %v, want %v", f.path, fi.Mode(), err, f.mode)
		}
	}
	if on, err := Running(o.Dir); !on || err != nil {
		t.Errorf("Running: %v, %v", on, err)
	}
	if left, _ := filepath.Glob(filepath.Join(o.Dir, ".*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}

	if err := c.Stop(ctx, "", time.Second); err != nil {
		t.Fatal(err)
	}
	end, err := ReadEnd(o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if end.Reason != ReasonDestroyed || end.InstanceID != "inst-1" || end.TasksMissing != "" || len(end.Tasks) != 2 {
		t.Fatalf("end: %+v", end)
	}
	server, build := end.Tasks[0], end.Tasks[1]
	if server.ID != "server" || server.Status != "running" || string(server.StderrTail) != "oops\n" {
		t.Errorf("server: %+v", server)
	}
	if build.ID != "build" || build.Status != "exited" || build.ExitCode != 3 || len(build.StdoutTail) != 64<<10 || build.StdoutTotal != 1<<20 {
		t.Errorf("build: %+v", build)
	}
	if !strings.Contains(trace(t, o), "power off\nend stopped\n") {
		t.Error("the guest was not asked to power off before it was stopped")
	}
	stopped := time.Now()
	awaitEnd(t, o)
	t.Logf("the process left %v after Stop", time.Since(stopped))
	if _, err := c.Status(ctx); !errors.Is(err, ErrNotRunning) {
		t.Errorf("status of what has ended: %v", err)
	}
	if err := c.Stop(ctx, "", 0); err != nil {
		t.Errorf("stop of what has ended in order: %v", err)
	}
	if _, err := Launch(ctx, o, nil); !errors.Is(err, ErrEnded) {
		t.Errorf("Launch of what has ended: %v", err)
	}
	if err := Remove(ctx, o.Dir, o.RunDir, o.Spec.Name); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(o.Dir); !os.IsNotExist(err) {
		t.Errorf("not removed: %v", err)
	}
}

// launchAndHang is the body of a helper process: a server that gets killed.
func launchAndHang(spec string) {
	o, err := readSpec(spec)
	if err == nil {
		var c *Client
		if c, err = Launch(context.Background(), o, nil); err == nil {
			fmt.Println(c.Hello().PID)
			select {}
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func TestSurvivesItsLauncher(t *testing.T) {
	o := testOptions(t, &fakeBackend{BootDelay: 200 * time.Millisecond})
	spec := filepath.Join(filepath.Dir(o.Dir), "options.json")
	b, _ := json.Marshal(o)
	if err := os.WriteFile(spec, b, 0o600); err != nil {
		t.Fatal(err)
	}
	exe, _ := os.Executable()
	cmd := exec.Command(exe, "launch-and-hang", spec)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	// Its whole group, as a client's clean-up would.
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	ctx := testContext(t)
	c, err := Dial(ctx, o.RunDir, o.Spec.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Hello().PID != pid {
		t.Errorf("pid %d, want %d", c.Hello().PID, pid)
	}
	if err := c.WaitReady(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := guestOf(c).system.Ping(ctx, &guestv1.PingRequest{}); err != nil {
		t.Error(err)
	}
}

func TestSupervisorIsNobodysChild(t *testing.T) {
	o := testOptions(t, &fakeBackend{})
	c := launch(t, o)
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Hello().PID))
	if err != nil {
		t.Skip("no /proc")
	}
	var pid, ppid, pgrp, session int
	var state string
	if _, err := fmt.Sscanf(string(stat[strings.LastIndexByte(string(stat), ')')+2:]), "%s %d %d %d", &state, &ppid, &pgrp, &session); err != nil {
		t.Fatal(err)
	}
	pid = c.Hello().PID
	if ppid == os.Getpid() || session != pid {
		t.Errorf("parent %d, session %d of pid %d", ppid, session, pid)
	}
	for fd, want := range map[int]string{0: os.DevNull, 1: filepath.Join(o.Dir, logFile), 2: filepath.Join(o.Dir, logFile)} {
		if got, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd)); err != nil || got != want {
			t.Errorf("descriptor %d is %s (%v), want %s", fd, got, err, want)
		}
	}
	// No child is left to us as a zombie.
	var ws syscall.WaitStatus
	if p, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil); err != syscall.ECHILD {
		t.Errorf("a child is left: %d, %v", p, err)
	}
}

func TestExpiresByItself(t *testing.T) {
	o := testOptions(t, &fakeBackend{})
	o.Deadline = time.Now().Add(1500 * time.Millisecond)
	o.Tuning.ExpiryGrace = time.Millisecond
	launch(t, o).Close()
	end := awaitEnd(t, o) // nobody is connected
	if end.Reason != ReasonExpired || len(end.Tasks) != 2 {
		t.Errorf("end: %+v", end)
	}
	if end.At.Before(o.Deadline.Add(-50 * time.Millisecond)) {
		t.Errorf("ended at %v, before its deadline %v", end.At, o.Deadline)
	}
}

func TestDeadlineThatHasPassed(t *testing.T) {
	o := testOptions(t, &fakeBackend{})
	o.Deadline = time.Now().Add(-time.Second)
	ctx := testContext(t)
	c, err := Launch(ctx, o, nil)
	if err == nil {
		err = c.WaitReady(ctx, nil)
		c.Close()
	}
	if !errors.Is(err, ErrEnded) {
		t.Fatalf("got %v", err)
	}
	if end := awaitEnd(t, o); end.Reason != ReasonExpired {
		t.Errorf("end: %+v", end)
	}
	if strings.Contains(trace(t, o), "start") {
		t.Error("the VM was started")
	}
}

func TestExtension(t *testing.T) {
	o := testOptions(t, &fakeBackend{})
	o.Deadline = time.Now().Add(2 * time.Second)
	c := launch(t, o)
	ctx := testContext(t)
	if err := c.SetDeadline(ctx, time.Now().Add(-time.Minute)); !fault.Is(err, fault.InvalidArgument) {
		t.Errorf("a deadline in the past: %v", err)
	}
	if err := c.SetDeadline(ctx, time.Time{}); !fault.Is(err, fault.InvalidArgument) {
		t.Errorf("no deadline: %v", err)
	}
	later := o.Deadline.Add(1500 * time.Millisecond)
	if err := c.SetDeadline(ctx, later); err != nil {
		t.Fatal(err)
	}
	st, err := c.Status(ctx)
	if err != nil || !st.Deadline.Equal(later) {
		t.Errorf("deadline %v, want %v (%v)", st.Deadline, later, err)
	}
	if end := awaitEnd(t, o); end.Reason != ReasonExpired || end.At.Before(later.Add(-50*time.Millisecond)) {
		t.Errorf("end: %+v, want not before %v", end, later)
	}
	if err := c.SetDeadline(ctx, time.Now().Add(time.Hour)); !errors.Is(err, ErrNotRunning) {
		t.Errorf("after the end: %v", err)
	}
}

func TestConcurrentLaunches(t *testing.T) {
	o := testOptions(t, &fakeBackend{})
	ctx := testContext(t)
	const n = 6
	pids := make([]int, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			c, err := Launch(ctx, o, nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if err := c.WaitReady(ctx, nil); err != nil {
				t.Error(err)
			}
			pids[i] = c.Hello().PID
		})
	}
	wg.Wait()
	for _, p := range pids {
		if p != pids[0] || p == 0 {
			t.Fatalf("pids: %v", pids)
		}
	}
	if got := trace(t, o); strings.Count(got, "start") != 1 {
		t.Errorf("started more than once:\n%s", got)
	}
	if left, _ := filepath.Glob(filepath.Join(o.Dir, ".*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	other := o
	other.InstanceID = "inst-2"
	if _, err := Launch(ctx, other, nil); !fault.Is(err, fault.InvalidArgument) {
		t.Errorf("another instance of that name: %v", err)
	}
}

func TestVersions(t *testing.T) {
	for _, tc := range []struct {
		theirs, ours uint32
		ok           bool
	}{{7, 7, true}, {6, 7, true}, {5, 7, false}, {8, 7, false}} {
		t.Run(fmt.Sprintf("%d to %d", tc.ours, tc.theirs), func(t *testing.T) {
			o := testOptions(t, &fakeBackend{HelloVersion: tc.theirs})
			defer func(v uint32) { helloVersion = v }(helloVersion)
			helloVersion = tc.ours
			ctx := testContext(t)
			c, err := Launch(ctx, o, nil)
			if tc.ok {
				if err != nil {
					t.Fatal(err)
				}
				c.Close()
			} else if !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), fmt.Sprint(tc.theirs)) {
				t.Errorf("got %v", err)
			}
			helloVersion = tc.theirs // for the clean-up
			if c, err := Dial(ctx, o.RunDir, o.Spec.Name); err != nil {
				t.Error(err)
			} else {
				c.Stop(ctx, "", 0)
				c.Close()
			}
		})
	}
}

func TestKilledSupervisor(t *testing.T) {
	o := testOptions(t, &fakeBackend{})
	c := launch(t, o)
	first := c.Hello().PID
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitGone(t, o.Dir)
	ctx := testContext(t)
	if _, err := os.Lstat(socketPath(o.RunDir, o.Spec.Name)); err != nil {
		t.Fatalf("no stale socket to test with: %v", err)
	}
	if _, err := Dial(ctx, o.RunDir, o.Spec.Name); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Dial: %v", err)
	}
	if err := c.Stop(ctx, "", 0); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Stop: %v", err)
	}
	if _, err := ReadEnd(o.Dir); !errors.Is(err, ErrNoEnd) {
		t.Errorf("ReadEnd: %v", err)
	}
	if again := launch(t, o); again.Hello().PID == first {
		t.Error("the dead answer")
	}
}

func TestRemoveAfterKill(t *testing.T) {
	o := testOptions(t, &fakeBackend{})
	c := launch(t, o)
	syscall.Kill(c.Hello().PID, syscall.SIGKILL)
	ctx := testContext(t)
	for range 2 { // a second time is success too
		if err := Remove(ctx, o.Dir, o.RunDir, o.Spec.Name); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{o.Dir, socketPath(o.RunDir, o.Spec.Name)} {
		if _, err := os.Lstat(p); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", p, err)
		}
	}
}

func TestRemoveKillsWhatHangs(t *testing.T) {
	o := testOptions(t, &fakeBackend{})
	c := launch(t, o)
	syscall.Kill(c.Hello().PID, syscall.SIGSTOP)
	if err := Remove(testContext(t), o.Dir, o.RunDir, o.Spec.Name); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(c.Hello().PID, 0); err == nil {
		// A zombie of the session's reaper still has its pid.
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Hello().PID))
		if !strings.Contains(string(stat), ") Z ") && len(stat) > 0 {
			t.Errorf("it lives: %s", stat)
		}
	}
}

func TestSignalIsAnOrderlyStop(t *testing.T) {
	o := testOptions(t, &fakeBackend{})
	c := launch(t, o)
	syscall.Kill(c.Hello().PID, syscall.SIGHUP) // is nothing
	if _, err := c.Status(testContext(t)); err != nil {
		t.Fatal(err)
	}
	syscall.Kill(c.Hello().PID, syscall.SIGTERM)
	if end := awaitEnd(t, o); end.Reason != ReasonSignal || len(end.Tasks) != 2 {
		t.Errorf("end: %+v", end)
	}
}

func TestStopThatTheGuestRefuses(t *testing.T) {
	o := testOptions(t, &fakeBackend{StopHangs: true})
	c := launch(t, o)
	if err := c.Stop(testContext(t), "", time.Second); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(trace(t, o), "end stopped") {
		t.Error("not stopped by force")
	}
}

func TestVMDies(t *testing.T) {
	for command, reason := range map[string]string{"poweroff": "guest powered off", "segfault": "hypervisor died"} {
		t.Run(command, func(t *testing.T) {
			o := testOptions(t, &fakeBackend{})
			c := launch(t, o)
			ctx := testContext(t)
			watched := make(chan Status, 1)
			var wg sync.WaitGroup
			wg.Go(func() {
				var last Status
				c.Watch(ctx, func(st Status) bool { last = st; return true })
				watched <- last
			})
			guestOf(c).processes.Start(ctx, &guestv1.StartRequest{Id: "x", Spec: &guestv1.ProcessSpec{Command: command}})
			end := awaitEnd(t, o)
			if end.Reason != reason || end.TasksMissing == "" || end.Console == "" {
				t.Errorf("end: %+v", end)
			}
			wg.Wait()
			if st := <-watched; st.State != StateEnded || st.EndReason != reason {
				t.Errorf("watched: %+v", st)
			}
			if err := c.WaitReady(ctx, nil); !errors.Is(err, ErrEnded) {
				t.Errorf("WaitReady afterwards: %v", err)
			}
		})
	}
}

func TestStopWhileBooting(t *testing.T) {
	o := testOptions(t, &fakeBackend{NoAgent: true})
	o.Tuning.StallTimeout = time.Minute
	ctx := testContext(t)
	c, err := Launch(ctx, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	waiting, waited := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	go func() {
		waited <- c.WaitReady(ctx, func(stage, _ string) {
			if stage == "booting" {
				once.Do(func() { close(waiting) })
			}
		})
	}()
	<-waiting
	if err := c.Stop(ctx, "", 0); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; !errors.Is(err, ErrEnded) {
		t.Errorf("WaitReady: %v", err)
	}
	if end := awaitEnd(t, o); end.Reason != ReasonDestroyed || end.TasksMissing == "" {
		t.Errorf("end: %+v", end)
	}
	if !strings.Contains(trace(t, o), "end stopped") {
		t.Error("the VM still runs")
	}
}

func TestBoots(t *testing.T) {
	for _, tc := range []struct {
		name     string
		b        *fakeBackend
		timeout  time.Duration
		attempts int    // 0: the boot fails
		detail   string // of the failure
		starts   int
	}{
		{name: "panics once", b: &fakeBackend{BadBoots: 1, BadKind: "panic"}, attempts: 2},
		{name: "hangs once", b: &fakeBackend{BadBoots: 1, BadKind: "hang"}, attempts: 2},
		{name: "hypervisor dies twice", b: &fakeBackend{BadBoots: 2, BadKind: "exit"}, attempts: 3},
		{name: "panics always", b: &fakeBackend{BadBoots: 9, BadKind: "panic"}, detail: "attempt 3 of 3: the guest panicked: Kernel panic - not syncing: Attempted to kill init!", starts: 3},
		{name: "hypervisor dies always", b: &fakeBackend{BadBoots: 9, BadKind: "exit"}, detail: "hypervisor died", starts: 3},
		{name: "never answers", b: &fakeBackend{NoAgent: true}, timeout: 2 * time.Second, detail: "did not answer within 2s"},
		{name: "cannot start", b: &fakeBackend{StartError: "no such image"}, detail: "no such image", starts: 1},
		{name: "no identity", b: &fakeBackend{BadIdentity: true}, detail: "sethostname: no", starts: 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := testOptions(t, tc.b)
			if tc.timeout > 0 {
				o.BootTimeout = tc.timeout
			}
			ctx := testContext(t)
			told := ""
			c, err := Launch(ctx, o, nil)
			if err == nil { // else it has failed already
				defer c.Close()
				err = c.WaitReady(ctx, func(stage, message string) { told += stage + ": " + message + "\n" })
			}
			if tc.attempts > 0 {
				if err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(told, fmt.Sprintf("attempt %d of 3 failed: ", tc.attempts-1)) {
					t.Errorf("progress says nothing of the retry:\n%s", told)
				}
				st, err := c.Status(ctx)
				if err != nil || st.BootAttempts != tc.attempts {
					t.Errorf("attempts: %d, %v, want %d", st.BootAttempts, err, tc.attempts)
				}
				if want := fmt.Sprintf("start %d cautious=%v\n", tc.attempts, tc.attempts == 3); !strings.Contains(trace(t, o), want) {
					t.Errorf("no %q", want)
				}
				return
			}
			if !errors.Is(err, ErrEnded) || !fault.Is(err, fault.RuntimeNotReady) || !strings.Contains(fault.From(err).Cause, tc.detail) {
				t.Errorf("WaitReady: %v, cause %q", err, fault.From(err).Cause)
			}
			end := awaitEnd(t, o)
			if end.Reason != ReasonBootFailed || !strings.Contains(end.Detail, tc.detail) {
				t.Errorf("end: %+v", end)
			}
			if got := strings.Count(trace(t, o), "start "); tc.starts > 0 && got != tc.starts {
				t.Errorf("%d starts, want %d", got, tc.starts)
			}
			if started, ended := strings.Count(trace(t, o), "start "), strings.Count(trace(t, o), "end "); tc.b.StartError == "" && ended != started {
				t.Errorf("%d VMs ended of %d", ended, started)
			}
		})
	}
}
