package sandbox

import (
	"context"
	"testing"
	"time"

	"sandboxforge/internal/store"
	"sandboxforge/internal/supervisor"
)

// TestTheHostsClockIsSet: whatever the host's clock is set to, a VM goes on and
// has as long as it had, its lease says when that is on the new clock, and it
// ends then.
func TestTheHostsClockIsSet(t *testing.T) {
	for _, c := range []struct {
		name string
		to   time.Duration
		heal func(l *lab, id string)
	}{
		{"a day ahead, seen by the sweeper", 24 * time.Hour, func(l *lab, _ string) { l.gc() }},
		{"a day ahead, seen by a call", 24 * time.Hour, func(l *lab, id string) {
			if _, err := l.s.ForkInstance(l.context(), ForkInstanceRequest{InstanceID: id}); err != nil {
				l.t.Errorf("a VM that goes on cannot be used: %v", err)
			}
		}},
		{"a day back", -24 * time.Hour, func(l *lab, _ string) { l.gc() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t)
			id := l.create().InstanceID
			status := func() (store.Lease, supervisor.Status) {
				t.Helper()
				in, err := l.s.store.Lease(t.Context(), id)
				if err != nil {
					t.Fatal(err)
				}
				d, err := supervisor.Dial(l.context(), l.s.runDir, in.BackendInstanceName)
				if err != nil {
					t.Fatalf("its supervisor: %v", err)
				}
				defer d.Close()
				st, err := d.Status(l.context())
				if err != nil {
					t.Fatal(err)
				}
				return in, st
			}
			_, before := status()
			l.setClock(c.to)
			second := l.open(l.conf()) // a server that was not there before
			c.heal(l, id)
			if _, err := second.GC(l.context()); err != nil {
				t.Fatal(err)
			}
			in, after := status()
			if in.Status != store.Running || after.State != supervisor.StateReady {
				t.Fatalf("the lease is %s, its VM %s", in.Status, after.State)
			}
			if after.Remaining > before.Remaining+time.Second {
				t.Errorf("it had %v and has %v", before.Remaining, after.Remaining)
			}
			if off := in.ExpiresAt.Sub(l.conf().now().Add(after.Remaining)); off.Abs() > 10*time.Second || !after.Deadline.Equal(in.ExpiresAt) {
				t.Errorf("the lease says %v, its supervisor %v and %v from now", in.ExpiresAt, after.Deadline, after.Remaining)
			}
			if _, _, err := second.live(t.Context(), id); err != nil {
				t.Errorf("it cannot be used: %v", err)
			}
			// Its end comes by the clock that nobody sets.
			d, err := supervisor.Dial(l.context(), l.s.runDir, in.BackendInstanceName)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if err := d.SetDeadline(l.context(), l.conf().now().Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			l.setClock(-48 * time.Hour)
			_ = d.Watch(l.context(), func(st supervisor.Status) bool { return st.State != supervisor.StateEnded })
			l.eventually(func() bool {
				if _, err := l.s.GC(context.Background()); err != nil {
					t.Fatal(err)
				}
				in, err := l.s.store.Lease(t.Context(), id)
				return err == nil && in.Status == store.Expired
			})
		})
	}
}
