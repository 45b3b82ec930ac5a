package sandbox

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"sandboxforge/internal/config"
	"sandboxforge/internal/store"
)

// emptyService is a service without VMs.
func emptyService(t *testing.T) *Service {
	t.Helper()
	env := map[string]string{"HOME": t.TempDir(), "SANDBOXFORGE_HOME": filepath.Join(t.TempDir(), "h")}
	settings, err := config.LoadSettings(func(k string) string { return env[k] }, runtime.GOOS)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Options{Settings: settings, Backends: noVMsOnly{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// runningLease is a lease as if its VM ran.
func runningLease(t *testing.T, s *Service) store.Lease {
	t.Helper()
	l, err := s.store.Admit(t.Context(), store.NewLease{Backend: "none", ExpiresAt: time.Now().Add(time.Hour)}, store.Limits{})
	if err == nil {
		l, err = s.store.Move(t.Context(), l.InstanceID, l.Generation, store.Move{To: store.Running})
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// heldLease is a running lease whose instance directory is locked, as by a
// supervisor whose socket is not there.
func heldLease(t *testing.T, s *Service) (store.Lease, *flock.Flock) {
	t.Helper()
	l := runningLease(t, s)
	dir := s.instanceDir(l.BackendInstanceName)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	held := flock.New(filepath.Join(dir, "supervisor.lock"))
	if ok, err := held.TryLock(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	return l, held
}

// A supervisor that holds its directory lives, even if its socket was swept
// away: its VM is not ended for that.
func TestALivingSupervisorWithoutASocketIsLeftAlone(t *testing.T) {
	s := emptyService(t)
	l, held := heldLease(t, s)
	res := &GCResult{}
	s.reconcileLease(t.Context(), l, res)
	now, err := s.store.Lease(t.Context(), l.InstanceID)
	if err != nil || now.Status != store.Running || len(res.Failures) != 1 || len(res.Actions) != 0 {
		t.Errorf("while the directory is held: %s, %+v, %v", now.Status, res, err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	s.reconcileLease(t.Context(), l, res)
	now, err = s.store.Lease(t.Context(), l.InstanceID)
	if err != nil || now.Status != store.Destroyed || now.EndReason != "its supervisor died" {
		t.Errorf("when it is free: %s, %q, %v", now.Status, now.EndReason, err)
	}
}

// TestADyingSupervisorIsWaitedFor: a killed process holds its lock a little
// longer than its socket; that is no failure.
func TestADyingSupervisorIsWaitedFor(t *testing.T) {
	s := emptyService(t)
	l, held := heldLease(t, s)
	released := make(chan error, 1)
	time.AfterFunc(150*time.Millisecond, func() { released <- held.Close() })
	res := &GCResult{}
	s.reconcileLease(t.Context(), l, res)
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	now, err := s.store.Lease(t.Context(), l.InstanceID)
	if err != nil || now.Status != store.Destroyed || len(res.Failures) != 0 {
		t.Errorf("%s, %+v, %v", now.Status, res, err)
	}
}
