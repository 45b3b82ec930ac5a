package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/fault"
)

func init() { children["claim"] = childClaim }

// ready makes a pool lease that can be claimed.
func ready(t *testing.T, s *Store, shape string, left time.Duration) Lease {
	t.Helper()
	n := newLease(s)
	n.Kind, n.WorkspaceRoot, n.WorkspaceID, n.ExpiresAt = KindPool, "", "", s.now().Add(left)
	n.Spec = []byte(fmt.Sprintf(`{"shape":%q,"vm":{"cpus":2}}`, shape))
	l, err := s.Admit(t.Context(), n, Limits{MaxInstances: 1})
	if err == nil {
		l, err = s.Move(t.Context(), l.InstanceID, l.Generation, Move{To: Running})
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func claimed(s *Store) NewLease {
	n := newLease(s)
	n.StartKind, n.Spec, n.AutoBootstrap = "warm", []byte(`{"overrides":{"a":null}}`), true
	return n
}

func TestClaim(t *testing.T) {
	s, _ := open(t)
	pool := ready(t, s, "a", 30*time.Minute)
	short := ready(t, s, "a", 30*time.Second)
	other := ready(t, s, "b", time.Hour)
	req, outcome, err := s.BeginRequest(t.Context(), "create_instance", "r1", "f")
	if err != nil || outcome != Fresh {
		t.Fatal(outcome, err)
	}
	n := claimed(s)
	n.Request = &req
	l, err := s.Claim(t.Context(), "a", time.Minute, n, Limits{MaxInstances: 1})
	if err != nil {
		t.Fatal(err)
	}
	if l.InstanceID != pool.InstanceID || l.Kind != KindInstance || l.Status != Running || l.Generation <= pool.Generation ||
		l.WorkspaceRoot != "/w" || !l.ExpiresAt.Equal(n.ExpiresAt) || l.StartKind != "warm" || string(l.Spec) != string(n.Spec) ||
		!l.AutoBootstrap || l.RequestID != "r1" || l.MemoryMiB != pool.MemoryMiB || l.CreatedAt.Before(pool.CreatedAt) {
		t.Errorf("claimed %+v", l)
	}
	if r, _, err := s.BeginRequest(t.Context(), "create_instance", "r1", "f"); err != nil || r.InstanceID != l.InstanceID {
		t.Errorf("the request knows %q, %v", r.InstanceID, err)
	}
	if _, err := s.Claim(t.Context(), "b", 0, claimed(s), Limits{MaxInstances: 1}); !fault.Is(err, fault.InstanceLimitExceeded) {
		t.Errorf("above the cap: %v", err)
	}
	if _, err := s.Claim(t.Context(), "a", time.Minute, claimed(s), Limits{}); !errors.Is(err, ErrNoneReady) {
		t.Errorf("one that ends at once: %v", err)
	}
	if _, err := s.Claim(t.Context(), "c", 0, claimed(s), Limits{}); !errors.Is(err, ErrNoneReady) {
		t.Errorf("a shape that is not there: %v", err)
	}
	if _, err := s.Move(t.Context(), other.InstanceID, other.Generation, Move{To: Expiring}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), "b", 0, claimed(s), Limits{}); !errors.Is(err, ErrNoneReady) {
		t.Errorf("one that clean-up owns: %v", err)
	}
	// Who decided to end the pool's VM before the claim loses.
	if _, err := s.Move(t.Context(), pool.InstanceID, pool.Generation, Move{To: Destroying}); !errors.Is(err, ErrConflict) {
		t.Errorf("a move of the pool's generation: %v", err)
	}
	u, err := s.Usage(t.Context())
	if err != nil || u.Instances != 1 || u.Pool != 2 {
		t.Errorf("%+v, %v; %s", u, err, short.InstanceID)
	}
}

func TestPoolAndTemplateLeasesDoNotCountAgainstTheCap(t *testing.T) {
	s, _ := open(t)
	for _, k := range []Kind{KindPool, KindTemplate, KindInstance, KindTemplate, KindPool} {
		n := newLease(s)
		n.Kind = k
		if _, err := s.Admit(t.Context(), n, Limits{MaxInstances: 1}); err != nil {
			t.Fatalf("%s: %v", k, err)
		}
	}
	_, err := s.Admit(t.Context(), newLease(s), Limits{MaxInstances: 1})
	if !fault.Is(err, fault.InstanceLimitExceeded) {
		t.Fatal(err)
	}
	if named := fmt.Sprint(fault.From(err).DetailMap()["live_instances"]); strings.Count(named, "inst_") != 1 {
		t.Errorf("named as in the way: %s", named)
	}
	n := newLease(s)
	n.Kind = KindTemplate
	if _, err := s.Admit(t.Context(), n, Limits{MemoryBudgetMiB: 5 * n.MemoryMiB}); !fault.Is(err, fault.InsufficientHostResources) {
		t.Errorf("their memory does not count: %v", err)
	}
}

func childClaim(ctx context.Context, s *Store) error {
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() {
			l, err := s.Claim(ctx, "a", 0, claimed(s), Limits{MaxInstances: 100})
			switch {
			case err == nil:
				fmt.Println("won", l.InstanceID)
			case !errors.Is(err, ErrNoneReady):
				errs[i] = err
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func TestManyProcessesClaim(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	s := openAt(t, path, Options{})
	for range 3 {
		ready(t, s, "a", time.Hour)
	}
	won := map[string]int{}
	for _, line := range strings.Fields(strings.Join(runChildren(t, 4, "claim", path), "")) {
		if strings.HasPrefix(line, "inst_") {
			won[line]++
		}
	}
	if len(won) != 3 {
		t.Errorf("won: %v", won)
	}
	for id, n := range won {
		if n != 1 {
			t.Errorf("%s was won %d times", id, n)
		}
	}
}
