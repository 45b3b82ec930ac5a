package sandbox

import (
	"context"
	"errors"
	"time"

	"sandboxforge/internal/store"
	"sandboxforge/internal/supervisor"
)

// A lease says when it ends on the host's clock, which may be set at any time;
// its supervisor counts on one that nobody sets, and is right. Where the two do
// not agree any more, the row is mended: a VM is neither ended early nor said to
// live when it does not.

// clockStep is by how much the host's clock must have been set to matter. It is
// more than what a day of slewing adds up to.
const clockStep = time.Minute

// clockSet restates the deadline of a running lease if the host's clock was set
// since the supervisor heard of it; did says whether.
func (s *Service) clockSet(ctx context.Context, l store.Lease, st supervisor.Status) (did bool, err error) {
	if st.State != supervisor.StateReady || st.Remaining <= 0 || st.Deadline.Sub(l.ExpiresAt).Abs() > time.Second {
		return false, nil // it ends, or has yet to hear of the lease's deadline
	}
	at := s.now().Add(st.Remaining)
	if at.Sub(l.ExpiresAt).Abs() < clockStep {
		return false, nil
	}
	moved, err := s.store.RestateDeadline(ctx, l.InstanceID, l.ExpiresAt, at)
	if errors.Is(err, store.ErrConflict) {
		return true, nil // another process was faster
	}
	if err != nil {
		return false, err
	}
	s.log.Info("the host's clock was set", "instance", l.InstanceID, "expires", moved.ExpiresAt, "was", l.ExpiresAt)
	return true, s.tellDeadline(ctx, moved)
}

// overdueBySetClock is clockSet for a running lease that cannot be used because
// its deadline has passed by the host's clock; ok says that it can be used.
func (s *Service) overdueBySetClock(ctx context.Context, l store.Lease) (ok bool) {
	if l.Status != store.Running || s.now().Before(l.ExpiresAt) {
		return false
	}
	c, err := s.links.get(ctx, l.BackendInstanceName)
	if err != nil {
		return false
	}
	st, err := c.Status(ctx)
	if err != nil {
		return false
	}
	did, err := s.clockSet(ctx, l, st)
	return did && err == nil
}
