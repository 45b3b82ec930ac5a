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
	work, cancel := context.WithTimeout(ctx, 30*time.Second)
	gc, err := s.GC(work)
	cancel()
	if err != nil {
		out.ReconciliationError = err.Error()
	} else if len(gc.Failures) > 0 {
		out.ReconciliationError = gc.Failures[0].Reason
	}

	leases, err := s.store.Leases(ctx, store.LeaseFilter{IncludeEnded: r.IncludeExpired})
	if err != nil {
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
		out.Instances = append(out.Instances, s.instanceView(l, vms))
	}

	sel, err := s.selectBackend(ctx)
	if err != nil {
		out.Backend, out.BackendError = s.backendHint(), err.Error()
		if f := fault.From(err); len(f.NextSteps) > 0 {
			out.BackendError += "; " + strings.Join(f.NextSteps, "; ")
		}
		return out, nil
	}
	out.Backend, out.BackendAvailable, out.BackendVersion = sel.Backend.Name(), true, sel.Report.Version
	return out, nil
}

func (s *Service) instanceView(l store.Lease, vms map[string]backend.Info) Instance {
	v := Instance{
		InstanceID: l.InstanceID, BackendName: l.Backend, ProfileName: l.ProfileName,
		WorkspaceRoot: l.WorkspaceRoot, WorkspaceID: l.WorkspaceID, Status: string(l.Status),
		CreatedAt: isoTime(l.CreatedAt), ExpiresAt: isoTime(l.ExpiresAt), LastUsedAt: stamp(l.LastUsedAt),
		OwnerSession: l.OwnerSession, SSHPort: port(l.SSHPort), BackendInstanceName: l.BackendInstanceName,
		RuntimeReady: l.RuntimeReady, Accelerator: l.Accelerator, StartKind: l.StartKind,
		MemoryMiB: l.MemoryMiB,
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

// touchedMemory is what a live VM really uses of what it was promised.
func (s *Service) touchedMemory(l store.Lease) int64 {
	sel, err := s.backends.ByName(l.Backend)
	if err != nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	info, err := sel.Backend.Inspect(ctx, l.BackendInstanceName)
	if err != nil || info.PID == 0 {
		return 0
	}
	return host.ProcessRSS(info.PID)
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

// tellDeadline gives a lease's supervisor the row's deadline.
func (s *Service) tellDeadline(ctx context.Context, l store.Lease) error {
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
