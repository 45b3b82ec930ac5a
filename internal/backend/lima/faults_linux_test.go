package lima

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

func createVM(t *testing.T, b *Backend, name string) {
	t.Helper()
	if err := b.Create(within(t, time.Minute), spec(name)); err != nil {
		t.Fatal(err)
	}
}

func startVM(t *testing.T, b *Backend, name string) *machine {
	t.Helper()
	m, err := b.Start(within(t, time.Minute), name, backend.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Stop(context.Background(), 0) })
	return m.(*machine)
}

func state(t *testing.T, b *Backend, name string) backend.Info {
	t.Helper()
	i, err := b.Inspect(within(t, time.Minute), name)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func gone(t *testing.T, b *Backend, name string) {
	t.Helper()
	if _, err := b.Inspect(within(t, time.Minute), name); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("%s is not gone: %v", name, err)
	}
	for _, dir := range []string{b.dir(name), b.instanceDir(name)} {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}

func ended(t *testing.T, m *machine) backend.Exit {
	t.Helper()
	select {
	case <-m.Done():
	case <-time.After(time.Minute):
		t.Fatal("the VM did not end")
	}
	return m.Exit()
}

// TestListings: whatever form a listing has, the same VMs are in it; half a one
// is an error.
func TestListings(t *testing.T) {
	c := newConfig(t)
	b := newBackend(t, c)
	createVM(t, b, "vm-1")
	createVM(t, b, "vm-2")
	startVM(t, b, "vm-2")
	for _, how := range []string{"", "list noise", "list array", "list wrapped"} {
		faults(t, c, how)
		all, err := b.List(within(t, time.Minute))
		if err != nil || len(all) != 2 || all[0].State != backend.Stopped || all[1].State != backend.Running {
			t.Errorf("%q: %+v, %v", how, all, err)
		}
	}
	for _, how := range []string{"list cut", "list fail"} {
		faults(t, c, how)
		if all, err := b.List(within(t, time.Minute)); !fault.Is(err, fault.BackendCommandFailed) {
			t.Errorf("%q: %+v, %v", how, all, err)
		}
		if _, err := b.Inspect(within(t, time.Minute), "vm-1"); err == nil || errors.Is(err, backend.ErrNotFound) {
			t.Errorf("%q: a VM that is there: %v", how, err)
		}
	}
	faults(t, c, "list hang")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := b.List(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a listing that hangs: %v", err)
	}
}

// TestFailedCreate leaves nothing, however far it came.
func TestFailedCreate(t *testing.T) {
	for _, how := range []string{"create fail", "create late"} {
		c := newConfig(t)
		b := newBackend(t, c)
		faults(t, c, how)
		err := b.Create(within(t, time.Minute), spec("vm-1"))
		if !fault.Is(err, fault.BackendCommandFailed) || !strings.Contains(fault.From(err).Cause, "told to fail") {
			t.Errorf("%s: %v", how, err)
		}
		gone(t, b, "vm-1")
		faults(t, c, "")
		createVM(t, b, "vm-1") // the name is free
	}
	c := newConfig(t)
	b := newBackend(t, c)
	faults(t, c, "create hang")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := b.Create(ctx, spec("vm-1")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a create that hangs: %v", err)
	}
	gone(t, b, "vm-1")
}

// TestHostAgentKilled: the hypervisor runs on without its keeper; the owner ends
// it, and without an owner Delete does.
func TestHostAgentKilled(t *testing.T) {
	b := newBackend(t, newConfig(t))
	createVM(t, b, "vm-1")
	m := startVM(t, b, "vm-1")
	syscall.Kill(m.pids.hostAgent, syscall.SIGKILL)
	if e := ended(t, m); e.Reason != backend.ExitHypervisorDied || !strings.Contains(e.Detail, "host agent") {
		t.Errorf("%+v", e)
	}
	if alive(m.pids.driver) {
		t.Error("the hypervisor runs on")
	}
	if i := state(t, b, "vm-1"); i.State != backend.Stopped {
		t.Errorf("%+v", i)
	}
	startVM(t, b, "vm-1") // it works again
}

// TestOrphans: VMs whose owner is gone are seen as running, not started again,
// and deleted; so is one without its host agent.
func TestOrphans(t *testing.T) {
	c := newConfig(t)
	b := newBackend(t, c)
	createVM(t, b, "vm-1")
	limactlByHand(t, c, "start", "--tty=false", "vm-1") // nobody owns it
	if i := state(t, b, "vm-1"); i.State != backend.Running {
		t.Errorf("%+v", i)
	}
	if _, err := b.Start(within(t, time.Minute), "vm-1", backend.StartOptions{}); !errors.Is(err, backend.ErrRunning) {
		t.Errorf("start of a VM that runs: %v", err)
	}
	p := lookPIDs(b.instanceDir("vm-1"))
	syscall.Kill(p.hostAgent, syscall.SIGKILL)
	if err := awaitGone(within(t, time.Minute), time.Minute, p.hostAgent); err != nil {
		t.Fatal(err)
	}
	if i := state(t, b, "vm-1"); i.State != backend.Broken || i.Detail == "" || i.PID != p.driver {
		t.Errorf("%+v", i)
	}
	if err := b.Delete(within(t, time.Minute), "vm-1"); err != nil {
		t.Fatal(err)
	}
	if alive(p.driver) {
		t.Error("the hypervisor runs on after Delete")
	}
	gone(t, b, "vm-1")

	// An instance that nobody knows is listed, and can be deleted.
	limactlByHand(t, c, "create", "--tty=false", "--name", "stranger", "--plain", "template:docker")
	all, err := b.List(within(t, time.Minute))
	if err != nil || len(all) != 1 || all[0].Name != "stranger" || all[0].State != backend.Broken {
		t.Errorf("%+v, %v", all, err)
	}
	if err := b.Delete(within(t, time.Minute), "stranger"); err != nil {
		t.Fatal(err)
	}
	gone(t, b, "stranger")
}

// TestByHand: a VM that somebody stops or deletes with limactl has ended, and
// its owner knows.
func TestByHand(t *testing.T) {
	c := newConfig(t)
	b := newBackend(t, c)
	createVM(t, b, "vm-1")
	m := startVM(t, b, "vm-1")
	limactlByHand(t, c, "stop", "--tty=false", "vm-1")
	if e := ended(t, m); e.Reason != backend.ExitGuestOff {
		t.Errorf("stopped by hand: %+v", e)
	}
	m = startVM(t, b, "vm-1")
	limactlByHand(t, c, "delete", "--force", "--tty=false", "vm-1")
	if e := ended(t, m); e.Reason != backend.ExitStopped {
		t.Errorf("deleted by hand: %+v", e)
	}
	if i := state(t, b, "vm-1"); i.State != backend.Broken {
		t.Errorf("%+v", i)
	}
	if _, err := b.Start(within(t, time.Minute), "vm-1", backend.StartOptions{}); err == nil {
		t.Error("a VM whose instance is gone was started")
	}
	if _, err := os.Lstat(b.instanceDir("vm-1")); err == nil {
		t.Error("limactl start made an instance of its own")
	}
	if err := b.Delete(within(t, time.Minute), "vm-1"); err != nil {
		t.Fatal(err)
	}
	gone(t, b, "vm-1")
}

// TestStubbornLimactl: what limactl does not do is done without it.
func TestStubbornLimactl(t *testing.T) {
	c := newConfig(t)
	b := newBackend(t, c)
	createVM(t, b, "vm-1")
	m := startVM(t, b, "vm-1")
	faults(t, c, "stop fail\ndelete fail")
	if err := m.Stop(within(t, time.Minute), 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if e := ended(t, m); e.Reason != backend.ExitStopped {
		t.Errorf("%+v", e)
	}
	m = startVM(t, b, "vm-1")
	if err := b.Delete(within(t, time.Minute), "vm-1"); err != nil {
		t.Fatal(err)
	}
	if e := ended(t, m); e.Reason != backend.ExitStopped {
		t.Errorf("%+v", e)
	}
	gone(t, b, "vm-1")
	// A polite stop that hangs is given the grace, and no more.
	createVM(t, b, "vm-2")
	faults(t, c, "")
	m = startVM(t, b, "vm-2")
	faults(t, c, "stop hang")
	done := make(chan error, 1)
	go func() { done <- m.Stop(context.Background(), 100*time.Millisecond) }()
	faults(t, c, "")
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("Stop waits for a limactl that hangs")
	}
}

// TestStartThatFails says what limactl said, and leaves nothing running.
func TestStartThatFails(t *testing.T) {
	c := newConfig(t)
	b := newBackend(t, c)
	createVM(t, b, "vm-1")
	faults(t, c, "hostagent fail")
	_, err := b.Start(within(t, time.Minute), "vm-1", backend.StartOptions{})
	if !fault.Is(err, fault.BackendCommandFailed) || !strings.Contains(fault.From(err).Cause, "host agent process has exited") {
		t.Errorf("%v: %q", err, fault.From(err).Cause)
	}
	if i := state(t, b, "vm-1"); i.State != backend.Stopped {
		t.Errorf("%+v", i)
	}
	faults(t, c, "start hang")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := b.Start(ctx, "vm-1", backend.StartOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a start that hangs: %v", err)
	}
	faults(t, c, "")
	startVM(t, b, "vm-1")
}

func TestProbe(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*Config)
		says   string
	}{
		"missing":  {func(c *Config) { c.Limactl = "limactl-that-is-not-there" }, "no limactl"},
		"too old":  {func(c *Config) { c.Env = append(c.Env, "LIMACTL_STANDIN_VERSION=1.2.2") }, "too old"},
		"hangs":    {func(c *Config) { c.Limactl = "/bin/false" }, "limactl"},
		"too long": {func(c *Config) { c.LimaHome += strings.Repeat("x", 80) }, "too long"},
		"hvf":      {func(c *Config) { c.Accel = "hvf" }, "SANDBOX_ACCEL"},
	} {
		cfg := newConfig(t)
		c.change(&cfg)
		b, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		r, err := b.Probe(within(t, time.Minute), nil)
		if err != nil || r.Usable || len(r.Problems) == 0 || !strings.Contains(r.Problems[0].What, c.says) || r.Problems[0].Fix == "" {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
	}
	// A host without it has no directory for it, and no error in a listing.
	cfg := newConfig(t)
	cfg.Limactl = "limactl-that-is-not-there"
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := b.List(within(t, time.Minute)); err != nil || len(all) > 0 {
		t.Errorf("%+v, %v", all, err)
	}
	if err := b.Delete(within(t, time.Minute), "vm-1"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Dir(cfg.StateDir) + "/vms"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory was made: %v", err)
	}
	if os.Geteuid() == 0 {
		cfg := newConfig(t)
		cfg.Env = []string{"LIMACTL_STANDIN_DRIVER=fake"}
		b, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		r, err := b.Probe(within(t, time.Minute), nil)
		if err != nil || r.Usable || !strings.Contains(r.Problems[0].Fix, "ordinary user") {
			t.Errorf("as root: %+v, %v", r, err)
		}
	}
}
