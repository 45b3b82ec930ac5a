package sandbox

import (
	"context"
	"fmt"
	"sync"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

const (
	// maxForks bounds the children of one fork.
	maxForks = 8
	// forksAtOnce is how many children start at the same time: each start is
	// work for about one CPU.
	forksAtOnce = 2
)

// ForkInstance makes copies of an instance, which stands still for a moment and
// goes on, and returns when each copy answers or has failed. Either all copies
// are admitted or none. That some did not come up is said in the result, that
// none did is an error. When the call is cancelled, nothing is left of it.
func (s *Service) ForkInstance(ctx context.Context, r ForkInstanceRequest) (*ForkInstanceResult, error) {
	id := r.RequestID
	r.RequestID = ""
	return once(ctx, s, "fork_instance", id, r, func(ctx context.Context, req *store.Request) (*ForkInstanceResult, bool, error) {
		return s.forkInstance(ctx, r, req)
	})
}

func (s *Service) forkInstance(ctx context.Context, r ForkInstanceRequest, req *store.Request) (*ForkInstanceResult, bool, error) {
	began := s.now()
	count := orDefault(r.Count, 1)
	if count < 1 || count > maxForks {
		return nil, false, fault.New(fault.InvalidArgument, "count is %d; it must be 1 to %d", count, maxForks)
	}
	ttl, err := s.leaseTTL(r.TTLMinutes)
	if err != nil {
		return nil, false, err
	}
	if req != nil && req.SnapshotID != "" {
		if res, err := s.resumeFork(ctx, req.SnapshotID); res != nil || err != nil {
			return res, true, err
		}
	}
	l, sel, err := s.saveable(ctx, r.InstanceID)
	if err != nil {
		return nil, false, err
	}
	expires := s.now().Add(ttl)
	children := func(sn store.Snapshot) []store.NewLease {
		all := make([]store.NewLease, count)
		for i := range all {
			all[i] = childLease(sn, expires)
		}
		return all
	}
	var (
		sn     store.Snapshot
		leases []store.Lease
		done   func()
	)
	err = s.withRoom(ctx, func() error {
		check := s.childCheck(ctx, l.MemoryMiB, l.DiskBytes, l.CPUs, l.WorkspaceRoot, l.Config, l.MemoryMiB<<20)
		sn, leases, done, err = s.beginSnapshot(ctx, l, store.NewSnapshot{Kind: store.SnapshotFork, Request: req},
			children, store.Limits{MaxInstances: s.settings.MaxInstances, Decide: check.decide})
		return err
	})
	if err != nil {
		return nil, false, err
	}
	defer done()
	timings := map[string]int64{"checks": s.now().Sub(began).Milliseconds()}
	mark := s.now()
	saved, err := s.save(ctx, sn, l)
	timings["save"] = s.now().Sub(mark).Milliseconds()
	if err != nil {
		s.undoAll(ctx, leases, err)
		s.record(ctx, "fork_instance", l.InstanceID, "", err, map[string]any{"snapshot_id": sn.SnapshotID})
		return nil, false, err
	}
	sn = saved
	mark = s.now()
	up := s.startChildren(ctx, sel, sn, leases)
	timings["children"] = s.now().Sub(mark).Milliseconds()
	timings["total"] = s.now().Sub(began).Milliseconds()
	out := s.forkResult(sn, up, timings)
	switch {
	case ctx.Err() != nil:
		// The last of them takes the state with it.
		err = fault.Wrap(context.Cause(ctx), fault.Cancelled, "fork_instance was cancelled and its children removed")
		s.undoAll(ctx, leases, err)
		s.releaseFork(ctx, sn.SnapshotID)
	case out.Created == 0:
		f := fault.From(up[0].err)
		err = fault.Wrap(f, f.Code, "none of the %d children of %s came up", count, l.InstanceID).
			Because("%s", f.Error()).With("children", out.Children)
		s.releaseFork(ctx, sn.SnapshotID)
	}
	s.record(ctx, "fork_instance", l.InstanceID, "", err, map[string]any{
		"snapshot_id": sn.SnapshotID, "pause_us": sn.Pause.Microseconds(), "created": out.Created, "failed": out.Failed})
	if err != nil {
		return nil, false, err
	}
	return out, true, nil
}

// forked is a child, or why it is none.
type forked struct {
	lease  store.Lease
	result *CreateInstanceResult
	err    error
}

// startChildren brings children up, a few at once, each on its own fate.
func (s *Service) startChildren(ctx context.Context, sel Selected, sn store.Snapshot, leases []store.Lease) []forked {
	children := make([]forked, len(leases))
	slots := make(chan struct{}, forksAtOnce)
	var (
		wg sync.WaitGroup
		mu sync.Mutex
		up int
	)
	for i, l := range leases {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			began := s.now()
			timings := map[string]int64{}
			c := forked{lease: l}
			if c.err = context.Cause(ctx); c.err == nil {
				c.lease, c.err = s.bringUpChild(ctx, sel, sn, l, timings)
			}
			if c.err == nil {
				timings["total"] = s.now().Sub(began).Milliseconds()
				c.result = s.childResult(sel, sn, c.lease, timings)
				c.result.Warnings = nil // the fork says it once
				mu.Lock()
				up++
				report(ctx, Progress{Stage: "children", Message: fmt.Sprintf("%d of %d children are up", up, len(leases)), Done: float64(up), Total: float64(len(leases))})
				mu.Unlock()
			} else {
				s.log.Warn("child of a fork failed", "instance", l.InstanceID, "error", c.err)
				s.undoCreate(ctx, c.lease, c.err)
			}
			children[i] = c
		})
	}
	wg.Wait()
	return children
}

// undoAll removes children, whether they run or were only admitted.
func (s *Service) undoAll(ctx context.Context, leases []store.Lease, cause error) {
	var wg sync.WaitGroup
	for _, l := range leases {
		wg.Go(func() {
			work, cancel := detached(ctx, undoTimeout)
			defer cancel()
			now, err := s.store.Lease(work, l.InstanceID)
			if err != nil || now.Status.Terminal() {
				return
			}
			s.undoCreate(work, now, cause)
		})
	}
	wg.Wait()
}

func (s *Service) forkResult(sn store.Snapshot, children []forked, timings map[string]int64) *ForkInstanceResult {
	out := &ForkInstanceResult{
		InstanceID: sn.InstanceID, SnapshotID: sn.SnapshotID, PauseMS: pauseMS(sn), Status: "ok",
		RunningTasks: sn.RunningTasks, TimingsMS: timings, Warnings: taskWarning(sn),
	}
	for _, c := range children {
		child := ForkChild{InstanceID: c.lease.InstanceID, Instance: c.result}
		if c.err != nil {
			child.Error = toolError(c.err)
			out.Failed++
		} else {
			out.Created++
		}
		out.Children = append(out.Children, child)
	}
	if out.Failed > 0 {
		out.Status = "partial"
		out.Warnings = append(out.Warnings, fmt.Sprintf("%d of %d children did not come up and were removed; each says why in children[].error", out.Failed, len(children)))
	}
	return out
}

// resumeFork goes on where a server died in the middle of a fork: children that
// run are its result, the others are removed. It returns nothing if no child
// runs: then the fork is made anew.
func (s *Service) resumeFork(ctx context.Context, snapshotID string) (*ForkInstanceResult, error) {
	sn, err := s.store.Snapshot(ctx, snapshotID)
	if fault.Is(err, fault.SnapshotNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	leases, err := s.store.Leases(ctx, store.LeaseFilter{ParentSnapshot: snapshotID, IncludeEnded: true})
	if err != nil {
		return nil, err
	}
	var children []forked
	up := 0
	for _, l := range leases {
		c := forked{lease: l}
		if c.result, c.err = s.resumeChild(ctx, l.InstanceID, &store.Request{Scope: "fork_instance", InstanceID: l.InstanceID}); c.result != nil {
			c.result.Warnings = nil
			up++
		} else if c.err == nil {
			c.err = fault.New(fault.Cancelled, "the server that started %s died meanwhile; it was removed", l.InstanceID).
				Next("fork again for another child")
		}
		children = append(children, c)
	}
	if up == 0 {
		return nil, s.clearAttempt(ctx, snapshotID)
	}
	out := s.forkResult(sn, children, map[string]int64{})
	s.record(ctx, "fork_instance", sn.InstanceID, "", nil, map[string]any{"resumed": true, "snapshot_id": snapshotID})
	return out, nil
}
