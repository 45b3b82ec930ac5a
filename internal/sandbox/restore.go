package sandbox

import (
	"context"
	"encoding/json"
	"errors"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

// RestoreInstance makes an instance that begins in a snapshot and returns when
// its guest answers. When it fails or is cancelled before, nothing is left of
// it.
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
		if res, err := s.resumeChild(ctx, req.InstanceID, req); res != nil || err != nil {
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
		s.undoCreate(ctx, lease, err)
		return nil, false, fault.From(err)
	}
	timings["total"] = s.now().Sub(began).Milliseconds()
	return s.childResult(sel, sn, lease, timings), true, nil
}

// childResult is create_instance's result for an instance that began in a
// snapshot.
func (s *Service) childResult(sel Selected, sn store.Snapshot, l store.Lease, timings map[string]int64) *CreateInstanceResult {
	out := s.createResult(l, sel, CreateInstanceRequest{}, timings)
	out.Warnings = taskWarning(sn)
	return out
}

// resumeChild goes on where a server died that was making an instance which
// begins in a snapshot. It returns nothing if that has to be made anew.
func (s *Service) resumeChild(ctx context.Context, id string, req *store.Request) (*CreateInstanceResult, error) {
	l, err := s.store.Lease(ctx, id)
	if fault.Is(err, fault.InstanceNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if l.Status == store.Running {
		if _, _, lerr := s.live(ctx, id); lerr == nil {
			sel, err := s.backends.ByName(l.Backend)
			if err != nil {
				return nil, err
			}
			sn, err := s.store.Snapshot(ctx, l.ParentSnapshot)
			if err != nil {
				return nil, err
			}
			timings := map[string]int64{}
			_ = json.Unmarshal(l.Timings, &timings) // written by bringUp
			return s.childResult(sel, sn, l, timings), nil
		}
		if l, err = s.store.Lease(ctx, id); err != nil {
			return nil, err
		}
	}
	if l.Status.Terminal() && l.EndReason != reasonAbandoned && l.EndReason != reasonCreateFailed {
		// It ran, and was ended since: another one is not what was asked for.
		return nil, req.UnknownFault()
	}
	work, cancel := detached(ctx, undoTimeout)
	defer cancel()
	_, err = s.teardown(work, l, store.Destroying, reasonAbandoned, 0)
	return nil, err
}
