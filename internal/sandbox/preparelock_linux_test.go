package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

// TestTwoServersPrepareOneInstance: each would give its servers passwords of its
// own, and record the other's.
func TestTwoServersPrepareOneInstance(t *testing.T) {
	w := newWorld(t)
	if err := os.MkdirAll(w.s.instanceDir(w.lease.BackendInstanceName), 0o700); err != nil {
		t.Fatal(err)
	}
	other, err := Open(t.Context(), Options{Settings: w.s.settings})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	unlock, err := w.s.lockPreparing(t.Context(), w.lease)
	if err != nil {
		t.Fatal(err)
	}
	// One that does not want to wait leaves, whichever server it asks.
	for _, s := range []*Service{w.s, other} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if _, err := s.lockPreparing(ctx, w.lease); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		cancel()
	}
	waits, got := make(chan struct{}), make(chan error, 1)
	told := false
	go func() {
		ctx := WithProgress(t.Context(), func(Progress) {
			if !told {
				told = true
				close(waits)
			}
		})
		u, err := other.lockPreparing(ctx, w.lease)
		if err == nil {
			u()
		}
		got <- err
	}()
	<-waits
	select {
	case err := <-got:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
	// Of an instance whose VM is gone, the lease says so, not the lock.
	gone := w.lease
	gone.BackendInstanceName = "agent-00000000"
	if unlock, err = other.lockPreparing(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	unlock()
}

// TestVariablesThatChangeDuringASync: what a sync puts back into the guest's
// files is what holds when it has written them.
func TestVariablesThatChangeDuringASync(t *testing.T) {
	w := newWorld(t)
	set := func(password string) {
		t.Helper()
		c, err := json.Marshal(connectionRecord{Env: map[string]string{"DB_PASSWORD": password}, Files: map[string][]string{".env": {"DB_PASSWORD"}}})
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		if w.lease.RemotePath != "" {
			dir = w.lease.RemotePath
		}
		if w.lease, err = w.s.store.Update(t.Context(), w.lease.InstanceID, store.Patch{Connection: c, RemotePath: &dir}); err != nil {
			t.Fatal(err)
		}
	}
	set("before")
	_, g, err := w.s.bound(t.Context(), w.lease.InstanceID)
	if err != nil {
		t.Fatal(err)
	}
	users, err := os.OpenFile(filepath.Join(w.lease.WorkspaceRoot, "etc", "passwd"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer users.Close()
	if _, err := fmt.Fprintf(users, "%s:x:%d:%d::/:/bin/sh\n", guestUser, os.Geteuid(), os.Getegid()); err != nil {
		t.Fatal(err)
	}
	changed := false
	w.through(func(call string, _ http.ResponseWriter, _ *http.Request) bool {
		if call == "Write" && !changed {
			changed = true
			set("after")
		}
		return false
	})
	if err := w.s.reinjectGuest(t.Context(), w.lease, g); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(w.lease.RemotePath, ".env"))
	if err != nil || !changed || !strings.Contains(string(text), "DB_PASSWORD=after\n") {
		t.Errorf("%q, %v, changed %v", text, err, changed)
	}
}

// TestPrepareThatIsCancelled is CANCELLED wherever it is, not what Docker says of
// it.
func TestPrepareThatIsCancelled(t *testing.T) {
	for _, leave := range []string{"GET /networks/lima-net-sandbox", "POST /networks/create"} {
		w := newWorld(t)
		e := w.withDocker("true")
		ctx, cancel := context.WithCancel(w.context())
		e.on = func(call string) {
			if call == leave {
				cancel()
			}
		}
		_, g, err := w.s.bound(t.Context(), w.lease.InstanceID)
		if err != nil {
			t.Fatal(err)
		}
		out := &PrepareWorkspaceResult{InstanceID: w.lease.InstanceID, Network: NetworkResult{Name: "lima-net-sandbox"}, IncludeServices: true}
		cfg, err := w.s.leaseConfig(w.lease)
		if err != nil {
			t.Fatal(err)
		}
		err = w.s.prepareDocker(ctx, w.lease, g, cfg, PrepareWorkspaceRequest{InstanceID: w.lease.InstanceID}, out)
		cancel()
		wantCode(t, err, fault.Cancelled)
	}
}
