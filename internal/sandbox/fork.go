package sandbox

import (
	"context"
	"errors"
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
// none did is an error. When the call is cancelled, nothing is left of it; what
// could not be removed is named in the error. A repeat that fails while it looks
// for what an earlier call made leaves that as it is, for the next repeat.
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
		if res, err := s.resumeFork(ctx, req); res != nil || err != nil {
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
		err = notRemoved(err, s.undoAll(ctx, leases, err)...)
		s.record(ctx, "fork_instance", l.InstanceID, "", err, map[string]any{"snapshot_id": sn.SnapshotID})
		return nil, false, err
	}
	sn = saved
	mark = s.now()
	up := s.startChildren(ctx, sel, sn, leases)
	timings["children"] = s.now().Sub(mark).Milliseconds()
	timings["total"] = s.now().Sub(began).Milliseconds()
	out := s.forkResult(sn, up, timings)
	out.Warnings = append(s.ttlWarning(r.TTLMinutes, expires), out.Warnings...)
	switch {
	case ctx.Err() != nil:
		// The last of them takes the state with it.
		err = cancelledCall(ctx, "fork_instance", "its children",
			s.undoAll(ctx, leases, fault.Wrap(context.Cause(ctx), fault.Cancelled, "fork_instance was cancelled"))...)
		s.releaseFork(ctx, sn.SnapshotID)
	case out.Created == 0:
		f := fault.From(up[0].err)
		err = fault.Wrap(f, f.Code, "none of the %d children of %s came up", count, l.InstanceID).
			Because("%s", f.Error()).With("children", out.Children)
		err = notRemoved(err, remnants(up)...)
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
	left   error // why it could not be removed
	ended  bool  // it ran, and was ended since
}

func remnants(children []forked) (all []remnant) {
	for _, c := range children {
		all = append(all, remnant{c.lease.InstanceID, c.left})
	}
	return all
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
				c.left = s.undoCreate(ctx, c.lease, c.err)
			}
			children[i] = c
		})
	}
	wg.Wait()
	return children
}

// undoAll removes children, whether they run or were only admitted.
func (s *Service) undoAll(ctx context.Context, leases []store.Lease, cause error) []remnant {
	all := make([]remnant, len(leases))
	var wg sync.WaitGroup
	for i, l := range leases {
		wg.Go(func() {
			work, cancel := detached(ctx, undoTimeout)
			defer cancel()
			now, err := s.store.Lease(work, l.InstanceID)
			if err == nil && !now.Status.Terminal() {
				err = s.undoCreate(work, now, cause)
			}
			all[i] = remnant{l.InstanceID, err}
		})
	}
	wg.Wait()
	return all
}

func (s *Service) forkResult(sn store.Snapshot, children []forked, timings map[string]int64) *ForkInstanceResult {
	out := &ForkInstanceResult{
		InstanceID: sn.InstanceID, SnapshotID: sn.SnapshotID, PauseMS: pauseMS(sn), Status: "ok",
		RunningTasks: sn.RunningTasks, TimingsMS: timings, Warnings: taskWarning(sn),
	}
	removed, left, ended := 0, 0, 0
	for _, c := range children {
		child := ForkChild{InstanceID: c.lease.InstanceID, Instance: c.result}
		switch {
		case c.err == nil:
			out.Created++
		case c.left != nil:
			c.err = notRemoved(c.err, remnant{c.lease.InstanceID, c.left})
			left++
		case c.ended:
			ended++
		default:
			removed++
		}
		if c.err != nil {
			child.Error = toolError(c.err)
			out.Failed++
		}
		out.Children = append(out.Children, child)
	}
	if out.Failed > 0 {
		out.Status = "partial"
	}
	for _, w := range []struct {
		n    int
		what string
	}{
		{removed, "did not come up and were removed"},
		{left, "did not come up and could not be removed: destroy_instance them"},
		{ended, "came up and have ended since"},
	} {
		if w.n > 0 {
			out.Warnings = append(out.Warnings, fmt.Sprintf("%d of %d children %s; each says why in children[].error", w.n, len(children), w.what))
		}
	}
	return out
}

// resumeFork goes on where a server died in the middle of a fork: children that
// run are its result, those that never came up are removed. It returns nothing if
// that is true of all: then the fork is made anew. Children that ran and have
// ended are never replaced.
func (s *Service) resumeFork(ctx context.Context, req *store.Request) (*ForkInstanceResult, error) {
	sn, err := s.store.Snapshot(ctx, req.SnapshotID)
	if err != nil && !fault.Is(err, fault.SnapshotNotFound) { // it goes with the last child
		return nil, unsettled{err}
	}
	began, err := s.store.Leases(ctx, store.LeaseFilter{ParentSnapshot: req.SnapshotID, IncludeEnded: true})
	if err != nil {
		return nil, unsettled{err}
	}
	var children []forked
	up, ended := 0, 0
	for _, l := range began {
		if l.RequestID != req.ID {
			continue // somebody else's, by restore_instance
		}
		l, runs, err := s.revisit(ctx, l, req)
		c := forked{lease: l, err: err}
		switch {
		case runs:
			if c.result, err = s.resumedChild(sn, l); err != nil {
				return nil, err
			}
			c.result.Warnings = nil // the fork says it once
			up++
		case err == nil:
			c.err = fault.New(fault.Cancelled, "the server that started %s died meanwhile; it was removed", l.InstanceID).
				Next("fork again for another child")
		case !errors.As(err, new(unsettled)):
			c.ended = true
			ended++
		case l.Status == store.Running || ctx.Err() != nil:
			return nil, err // as long as that is not known there is no result
		default:
			c.err = fault.New(fault.Cancelled, "the server that started %s died meanwhile", l.InstanceID)
			c.left = err
		}
		children = append(children, c)
	}
	switch {
	case up > 0:
	case ended > 0 || len(children) == 0: // what is not remembered ended long ago
		return nil, req.UnknownFault()
	default:
		for _, c := range children {
			if c.left != nil {
				return nil, c.left
			}
		}
		return nil, s.clearAttempt(ctx, req.SnapshotID)
	}
	out := s.forkResult(sn, children, map[string]int64{})
	s.record(ctx, "fork_instance", sn.InstanceID, "", nil, map[string]any{"resumed": true, "snapshot_id": req.SnapshotID})
	return out, nil
}
