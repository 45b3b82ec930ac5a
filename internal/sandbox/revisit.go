package sandbox

import (
	"context"
	"encoding/json"
	"errors"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

// What a server that died has left of a call is found by the call's repeat.

// revisit looks after an instance that an earlier call was making: it runs, or
// what is left of it is removed and it can be made anew. One that ran and has
// ended since is neither, and the error is OUTCOME_UNKNOWN: another one is not
// what was asked for. Whatever keeps this from being told, or the removal from
// being done, is unsettled: a supervisor that does not answer, a database that is
// busy, a caller that leaves. An instance that runs stays untouched. The lease is
// as it is then.
func (s *Service) revisit(ctx context.Context, l store.Lease, req *store.Request) (now store.Lease, runs bool, err error) {
	report(ctx, Progress{Stage: "resume", Message: "looking for what an earlier call with this request_id made: " + l.InstanceID})
	if l.Status == store.Running {
		// The VM may have gone meanwhile; then the lease is settled here.
		_, _, lerr := s.live(ctx, l.InstanceID)
		if lerr == nil {
			return l, true, nil
		}
		if ctx.Err() != nil {
			return l, false, unsettled{context.Cause(ctx)}
		}
		now, err := s.store.Lease(ctx, l.InstanceID)
		if err != nil {
			return l, false, unsettled{err}
		}
		if now.Status == store.Running {
			return now, false, unsettled{lerr}
		}
		l = now
	}
	if l.Status.CleanupOwned() && l.EndReason != reasonAbandoned && l.EndReason != reasonCreateFailed {
		return l, false, req.UnknownFault()
	}
	work, cancel := detached(ctx, undoTimeout)
	defer cancel()
	now, err = s.teardown(work, l, store.Destroying, reasonAbandoned, 0)
	if err != nil {
		return now, false, unsettled{err}
	}
	return now, false, nil
}

// revisitBound is revisit for the instance that a request names.
func (s *Service) revisitBound(ctx context.Context, req *store.Request) (now store.Lease, runs bool, err error) {
	l, err := s.store.Lease(ctx, req.InstanceID)
	if fault.Is(err, fault.InstanceNotFound) {
		return l, false, req.UnknownFault() // it ended so long ago that nobody remembers how
	}
	if err != nil {
		return l, false, unsettled{err}
	}
	return s.revisit(ctx, l, req)
}

// recordedTimings are those of a lease that came up.
func recordedTimings(l store.Lease) map[string]int64 {
	timings := map[string]int64{}
	_ = json.Unmarshal(l.Timings, &timings) // written by bringUp
	return timings
}

// clearAttempt removes the snapshot that a server was making which died, for a
// request that is now made anew. A save that is under way is waited for; that
// ends with ctx. One that others began in stays with them.
func (s *Service) clearAttempt(ctx context.Context, id string) error {
	sn, err := s.store.Snapshot(ctx, id)
	if err == nil {
		err = s.waitSaved(ctx, sn)
	}
	if err == nil {
		work, cancel := detached(ctx, undoTimeout)
		defer cancel()
		err = s.removeSnapshot(work, sn)
	}
	switch {
	case err == nil, fault.Is(err, fault.SnapshotNotFound), errors.Is(err, store.ErrSnapshotInUse):
		return nil
	case errors.Is(err, store.ErrConflict):
		return nil // reconciliation removes it
	}
	return unsettled{err}
}
