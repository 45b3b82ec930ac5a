package sandbox

import (
	"context"
	"errors"
	"strings"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/host"
	"sandboxforge/internal/store"
)

// ListInstances lists leases, newest first, each beside what its VM really is.
// Leases and VMs that drifted apart are reconciled first; that this failed is
// said in the result and is not the caller's failure.
func (s *Service) ListInstances(ctx context.Context, r ListInstancesRequest) (*ListInstancesResult, error) {
	out := &ListInstancesResult{Instances: []Instance{}}
	// What needs longer than a list may take goes on behind it.
	sweep := s.sweepOnce()
	select {
	case <-sweep.done:
		if sweep.err != nil {
			out.ReconciliationError = sweep.err.Error()
		} else if len(sweep.res.Failures) > 0 {
			out.ReconciliationError = sweep.res.Failures[0].Reason
		}
	case <-time.After(listPatience):
		out.ReconciliationError = "reconciliation is still under way: VMs are being removed; list again in a few seconds"
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}

	leases, err := s.store.Leases(ctx, store.LeaseFilter{IncludeEnded: r.IncludeExpired})
	if err != nil {
		return nil, err
	}
	if out.SnapshotCount, out.SnapshotBytes, err = s.snapshotTotals(ctx); err != nil {
		return nil, err
	}
	vms := map[string]backend.Info{}
	for _, b := range s.backends.All() {
		infos, err := b.List(ctx)
		if err != nil && out.ReconciliationError == "" {
			out.ReconciliationError = b.Name() + ": " + err.Error()
		}
		for _, i := range infos {
			vms[i.Name] = i
		}
	}
	for _, l := range leases {
		if l.Kind != store.KindInstance && !r.IncludeInternal {
			continue
		}
		out.Instances = append(out.Instances, s.instanceView(l, vms))
	}
	s.addCosts(out.Instances, vms)
	if out.TemplateCount, out.TemplateBytes, err = s.templateTotals(ctx); err != nil {
		// They are nobody's instances: what there is of these is told all the same.
		s.log.Warn("the templates cannot be counted", "error", err)
	}

	probe, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	sel, err := s.selectBackend(probe)
	switch {
	case err == nil:
		out.Backend, out.BackendAvailable, out.BackendVersion = sel.Backend.Name(), true, sel.Report.Version
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		out.Backend, out.BackendError = s.backendHint(), "the hypervisor is being tried out for the first time; list again in a minute"
	default:
		out.Backend, out.BackendError = s.backendHint(), err.Error()
		if f := fault.From(err); len(f.NextSteps) > 0 {
			out.BackendError += "; " + strings.Join(f.NextSteps, "; ")
		}
	}
	return out, nil
}

// listPatience is what a list waits for reconciliation and for a first probe.
const listPatience = 5 * time.Second

func (s *Service) instanceView(l store.Lease, vms map[string]backend.Info) Instance {
	v := Instance{
		InstanceID: l.InstanceID, Kind: string(l.Kind), BackendName: l.Backend, ProfileName: l.ProfileName,
		WorkspaceRoot: l.WorkspaceRoot, WorkspaceID: l.WorkspaceID, Status: string(l.Status),
		CreatedAt: isoTime(l.CreatedAt), ExpiresAt: isoTime(l.ExpiresAt), LastUsedAt: stamp(l.LastUsedAt),
		OwnerSession: l.OwnerSession, SSHPort: port(l.SSHPort), BackendInstanceName: l.BackendInstanceName,
		RuntimeReady: l.RuntimeReady, Accelerator: l.Accelerator, StartKind: l.StartKind,
		MemoryMiB: l.MemoryMiB, ParentSnapshot: l.ParentSnapshot, ParentInstance: l.ParentInstance,
	}
	if l.Status != store.Running && l.Status != store.Creating {
		v.EndReason = l.EndReason
	}
	if l.RuntimeName != "" {
		v.RuntimeName = &l.RuntimeName
	}
	if l.DockerCommand != "" {
		v.DockerCommand = &l.DockerCommand
	}
	if sel, err := s.backends.ByName(l.Backend); err == nil {
		v.Capabilities = sel.Backend.Capabilities()
	}
	info, ok := vms[l.BackendInstanceName]
	if ok {
		state := string(info.State)
		v.LiveExists, v.LiveStatus, v.DiskUsedBytes = true, &state, info.DiskUsed
		if v.SSHPort == nil {
			v.SSHPort = port(info.SSHPort)
		}
	}
	if d := drift(l, info, ok); d != "" {
		v.ReconciliationDrift = &d
	}
	return v
}

// drift says in one sentence how a lease and its VM disagree, "" if they do
// not. What is on its way (creating, destroying) does not count.
func drift(l store.Lease, info backend.Info, exists bool) string {
	switch {
	case l.Status == store.Running && !exists:
		return "the lease is running and its VM is gone"
	case l.Status == store.Running && info.State != backend.Running:
		return "the lease is running and its VM is " + string(info.State)
	case l.Status.Terminal() && exists:
		return "the lease has ended and its VM still exists"
	case l.Status == store.Error && exists:
		return "the lease failed and its VM has not been removed yet"
	}
	return ""
}

// touchedMemory is what each live VM really uses of what it was promised, by
// name.
func (s *Service) touchedMemory(ctx context.Context) map[string]int64 {
	used := map[string]int64{}
	for _, b := range s.backends.All() {
		infos, err := b.List(ctx)
		if err != nil {
			s.log.Warn("memory of live VMs unknown", "backend", b.Name(), "error", err)
		}
		for _, i := range infos {
			if i.PID != 0 {
				used[i.Name] = host.ProcessPrivate(i.PID)
			}
		}
	}
	return used
}

// ExtendInstanceTTL moves an instance's expiry, never past MAX_TTL from now.
func (s *Service) ExtendInstanceTTL(ctx context.Context, r ExtendInstanceTTLRequest) (*ExtendInstanceTTLResult, error) {
	by, err := minutes(r.TTLMinutes)
	if err != nil {
		return nil, err
	}
	if _, _, err := s.live(ctx, r.InstanceID); err != nil {
		return nil, err
	}
	by = min(by, 2*s.settings.MaxTTL)
	l, added, err := s.store.Extend(ctx, r.InstanceID, by, s.settings.MaxTTL)
	if err != nil {
		return nil, err
	}
	// The row is first: a supervisor that missed it ends early, and the next
	// reconciliation tells it again.
	work, cancel := detached(ctx, 15*time.Second)
	defer cancel()
	if err := s.tellDeadline(work, l); err != nil {
		err = fault.Wrap(err, fault.OutcomeUnknown, "the new expiry of %s is recorded, but its supervisor could not be told", l.InstanceID).
			With("instance_id", l.InstanceID).With("expires_at", isoTime(l.ExpiresAt)).
			Next("call extend_instance_ttl again with a small value, or list_instances to see whether the instance still runs")
		s.record(ctx, "extend_instance_ttl", l.InstanceID, "", err, nil)
		return nil, err
	}
	s.record(ctx, "extend_instance_ttl", l.InstanceID, "", nil, map[string]any{"added_ms": added.Milliseconds()})
	return &ExtendInstanceTTLResult{
		InstanceID: l.InstanceID, ExpiresAt: isoTime(l.ExpiresAt), TTLExtendedMinutes: added.Minutes(),
	}, nil
}

// tellDeadline gives a lease's supervisor the row's deadline. The row may move
// meanwhile, in this or another process, and whoever moves it tells it too: so
// each looks at the row again after telling, and the last to tell is right.
func (s *Service) tellDeadline(ctx context.Context, l store.Lease) error {
	for range 10 {
		err := s.setDeadline(ctx, l)
		if err != nil {
			return err
		}
		now, err := s.store.Lease(ctx, l.InstanceID)
		if err != nil {
			return err
		}
		if now.ExpiresAt.Equal(l.ExpiresAt) || now.Status != store.Running {
			return nil
		}
		l = now
	}
	return nil // others keep moving it, and tell it
}

func (s *Service) setDeadline(ctx context.Context, l store.Lease) error {
	var err error
	for range 2 {
		c, derr := s.links.get(ctx, l.BackendInstanceName)
		if derr != nil {
			return s.unreachable(ctx, l, derr)
		}
		if err = c.SetDeadline(ctx, l.ExpiresAt); err == nil {
			return nil
		}
		s.links.drop(l.BackendInstanceName)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return err
}
