package sandbox

import (
	"context"
	"errors"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

// RestoreInstance makes an instance that begins in a snapshot and returns when
// its guest answers. When it fails or is cancelled before, nothing is left of
// it. A repeat that fails while it looks for what an earlier call made leaves
// that as it is, for the next repeat.
func (s *Service) RestoreInstance(ctx context.Context, r RestoreInstanceRequest) (*CreateInstanceResult, error) {
	id := r.RequestID
	r.RequestID = ""
	return once(ctx, s, "restore_instance", id, r, func(ctx context.Context, req *store.Request) (*CreateInstanceResult, bool, error) {
		return s.restoreInstance(ctx, r, req)
	})
}

func (s *Service) restoreInstance(ctx context.Context, r RestoreInstanceRequest, req *store.Request) (*CreateInstanceResult, bool, error) {
	began := s.now()
	if req != nil && req.InstanceID != "" {
		if res, err := s.resumeRestore(ctx, req); res != nil || err != nil {
			return res, true, err
		}
	}
	ttl, err := s.leaseTTL(r.TTLMinutes)
	if err != nil {
		return nil, false, err
	}
	sn, err := s.store.ReadySnapshot(ctx, r.SnapshotID)
	if err != nil {
		return nil, false, err
	}
	sel, err := s.backends.ByName(sn.Backend)
	if err != nil {
		return nil, false, err
	}
	keeper, err := keeperOf(sel.Backend)
	if err != nil {
		return nil, false, err
	}
	report(ctx, Progress{Stage: "check", Message: "checking the files of " + sn.SnapshotID})
	if _, err := keeper.CheckState(ctx, stateDir(sn.Dir)); err != nil {
		if errors.Is(err, backend.ErrStateUnfit) {
			err = unfit(sn, err)
		}
		return nil, false, err
	}
	timings := map[string]int64{"checks": s.now().Sub(began).Milliseconds()}

	n := childLease(sn, s.now().Add(ttl))
	n.Request = req
	var lease store.Lease
	var done func()
	err = s.withRoom(ctx, func() error {
		check := s.childCheck(ctx, sn.VMMemoryMiB, sn.VMDiskBytes, sn.VMCPUs, sn.WorkspaceRoot, sn.Config, 0)
		s.admitting.Add(1)
		defer s.admitting.Add(-1)
		if lease, err = s.store.Admit(ctx, n, store.Limits{MaxInstances: s.settings.MaxInstances, Decide: check.decide}); err == nil {
			done = s.busy(lease.InstanceID)
		}
		return err
	})
	if err != nil {
		return nil, false, err
	}
	defer done()
	lease, err = s.bringUpChild(ctx, sel, sn, lease, timings)
	s.record(ctx, "restore_instance", lease.InstanceID, "", err, map[string]any{"snapshot_id": sn.SnapshotID, "timings_ms": timings})
	if err != nil {
		return nil, false, notRemoved(fault.From(err), remnant{lease.InstanceID, s.undoCreate(ctx, lease, err)})
	}
	timings["total"] = s.now().Sub(began).Milliseconds()
	out := s.childResult(sel, sn, lease, timings)
	out.Warnings = append(s.ttlWarning(r.TTLMinutes, lease.ExpiresAt), out.Warnings...)
	return out, true, nil
}

// childResult is create_instance's result for an instance that began in a
// snapshot.
func (s *Service) childResult(sel Selected, sn store.Snapshot, l store.Lease, timings map[string]int64) *CreateInstanceResult {
	out := s.createResult(l, sel, CreateInstanceRequest{}, timings)
	out.Warnings = taskWarning(sn)
	return out
}

// resumeRestore goes on where a server died that was working on the same
// request. It returns nothing if the instance has to be made anew.
func (s *Service) resumeRestore(ctx context.Context, req *store.Request) (*CreateInstanceResult, error) {
	l, runs, err := s.revisitBound(ctx, req)
	if err != nil || !runs {
		return nil, err
	}
	sn, err := s.store.Snapshot(ctx, l.ParentSnapshot)
	if err != nil {
		return nil, unsettled{err}
	}
	return s.resumedChild(sn, l)
}

// resumedChild is the result for an instance that an earlier call brought up in
// a snapshot.
func (s *Service) resumedChild(sn store.Snapshot, l store.Lease) (*CreateInstanceResult, error) {
	sel, err := s.backends.ByName(l.Backend)
	if err != nil {
		return nil, unsettled{err}
	}
	return s.childResult(sel, sn, l, recordedTimings(l)), nil
}
