package store

import (
	"errors"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/fault"
)

// TestEveryActiveStatusCounts: whatever may still have a VM holds its place.
func TestEveryActiveStatusCounts(t *testing.T) {
	for _, st := range Statuses() {
		s, _ := open(t)
		held := leaseIn(t, s, st)
		_, err := s.Admit(t.Context(), newLease(s), Limits{MaxInstances: 1})
		u, uerr := s.Usage(t.Context())
		if uerr != nil {
			t.Fatal(uerr)
		}
		if st.Terminal() {
			if err != nil || u.Instances != 1 || u.Live[0].InstanceID == held.InstanceID {
				t.Errorf("%s: counted: %v, usage %+v", st, err, u)
			}
			continue
		}
		f := wantCode(t, err, fault.InstanceLimitExceeded)
		if u.Instances != 1 || u.MemoryMiB != 2048 || u.DiskBytes != 15<<30 || u.CPUs != 2 {
			t.Errorf("%s: usage %+v", st, u)
		}
		steps := strings.Join(f.NextSteps, "\n")
		if !strings.Contains(steps, held.InstanceID) || !st.ending() && !strings.Contains(steps, held.ExpiresAt.Format(time.RFC3339)) {
			t.Errorf("%s: the next steps do not name what to destroy:\n%s", st, steps)
		}
		if st.ending() == strings.Contains(steps, "destroy_instance") {
			t.Errorf("%s: next steps:\n%s", st, steps)
		}
	}
}

func TestLimits(t *testing.T) {
	refusal := errors.New("no")
	s, _ := open(t)
	admit(t, s) // 2048 MiB, 15 GiB
	pool := newLease(s)
	pool.Kind = KindPool
	if _, err := s.Admit(t.Context(), pool, Limits{MaxInstances: 1}); err != nil {
		t.Fatalf("a pool lease was refused for the cap: %v", err)
	}
	for name, test := range map[string]struct {
		n    NewLease
		lim  Limits
		code fault.Code // "": admitted
		err  error
	}{
		"cap":             {newLease(s), Limits{MaxInstances: 1}, fault.InstanceLimitExceeded, nil},
		"memory":          {newLease(s), Limits{MemoryBudgetMiB: 3*2048 - 1}, fault.InsufficientHostResources, nil},
		"memory, pool":    {pool, Limits{MemoryBudgetMiB: 3*2048 - 1}, fault.InsufficientHostResources, nil},
		"memory, exactly": {newLease(s), Limits{MemoryBudgetMiB: 3 * 2048}, "", nil},
		"disk":            {newLease(s), Limits{DiskBudgetBytes: 3*15<<30 - 1}, fault.InsufficientDisk, nil},
		"disk, exactly":   {newLease(s), Limits{DiskBudgetBytes: 3 * 15 << 30}, "", nil},
		"cap, not pool":   {newLease(s), Limits{MaxInstances: 2}, "", nil},
		"decided":         {newLease(s), Limits{Decide: func(Usage) error { return refusal }}, fault.Internal, refusal},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := s.Admit(t.Context(), test.n, test.lim)
			if test.code == "" {
				if err != nil {
					t.Fatal(err)
				}
				l = move(t, s, l, Move{To: Destroying})
				move(t, s, l, Move{To: Destroyed})
				return
			}
			if fault.CodeOf(err) != test.code || test.err != nil && !errors.Is(err, test.err) {
				t.Errorf("error %v (%s), want %s", err, fault.CodeOf(err), test.code)
			}
			if u, err := s.Usage(t.Context()); err != nil || u.Instances != 1 || u.Pool != 1 {
				t.Errorf("a refused lease was recorded: %+v %v", u, err)
			}
		})
	}
	var seen Usage
	if _, err := s.Admit(t.Context(), newLease(s), Limits{Decide: func(u Usage) error { seen = u; return nil }}); err != nil {
		t.Fatal(err)
	}
	if seen.Instances != 1 || seen.Pool != 1 || seen.MemoryMiB != 4096 || len(seen.Live) != 2 {
		t.Errorf("Decide saw %+v", seen)
	}
}

// TestDecidePanicsReleasesTheTurn: a handler that panics must not leave the
// write lock behind.
func TestDecidePanicsReleasesTheTurn(t *testing.T) {
	s, _ := open(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		s.Admit(t.Context(), newLease(s), Limits{Decide: func(Usage) error { panic("x") }})
	}()
	admit(t, s)
}
