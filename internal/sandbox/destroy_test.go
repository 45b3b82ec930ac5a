package sandbox

import (
	"context"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/config"
	"sandboxforge/internal/store"
)

// noVMs is a backend whose VMs are gone already.
type noVMs struct{ backend.Backend }

func (noVMs) Name() string                         { return "none" }
func (noVMs) Delete(context.Context, string) error { return nil }

// noVMsOnly offers it and nothing else.
type noVMsOnly struct{ Backends }

func (noVMsOnly) ByName(string) (Selected, error) { return Selected{Backend: noVMs{}}, nil }

// Who began to end an instance said why; a destroy that joins does not say it
// anew.
func TestDestroyKeepsTheFirstReason(t *testing.T) {
	env := map[string]string{"HOME": t.TempDir(), "SANDBOXFORGE_HOME": filepath.Join(t.TempDir(), "h")}
	settings, err := config.LoadSettings(func(k string) string { return env[k] }, runtime.GOOS)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Options{Settings: settings, Backends: noVMsOnly{}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct {
		via    store.Status // begun before, "" for not
		reason string
		status store.Status
		want   string
	}{
		{"", "", store.Destroyed, "destroyed"},
		{store.Expiring, "the lease's deadline passed", store.Expired, "the lease's deadline passed"},
		{store.Destroying, "the creation failed", store.Destroyed, "the creation failed"},
		{store.Destroying, "", store.Destroyed, "destroyed"},
	} {
		l, err := s.store.Admit(t.Context(), store.NewLease{Backend: "none", ExpiresAt: time.Now().Add(time.Hour)}, store.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		if l, err = s.store.Move(t.Context(), l.InstanceID, l.Generation, store.Move{To: store.Running}); err != nil {
			t.Fatal(err)
		}
		if c.via != "" {
			if l, err = s.store.Move(t.Context(), l.InstanceID, l.Generation, store.Move{To: c.via, Reason: c.reason}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.DestroyInstance(t.Context(), DestroyInstanceRequest{InstanceID: l.InstanceID}); err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		if l, err = s.store.Lease(t.Context(), l.InstanceID); err != nil || l.Status != c.status || l.EndReason != c.want {
			t.Errorf("%+v: status %s, reason %q, %v", c, l.Status, l.EndReason, err)
		}
	}
}
