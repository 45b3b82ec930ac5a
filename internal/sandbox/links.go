package sandbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/store"
	"sandboxforge/internal/supervisor"
)

// links keeps one connection to each supervisor, because a connection costs
// more than a call. A connection whose supervisor went away is dropped by who
// notices.
type links struct {
	s  *Service
	mu sync.Mutex
	m  map[string]*supervisor.Client
}

// get returns a connection to the supervisor of a VM.
func (l *links) get(ctx context.Context, name string) (*supervisor.Client, error) {
	l.mu.Lock()
	c := l.m[name]
	l.mu.Unlock()
	if c != nil {
		return c, nil
	}
	c, err := supervisor.Dial(ctx, l.s.runDir, name)
	if err != nil {
		return nil, err
	}
	return l.put(name, c), nil
}

// put keeps c, unless another was kept first: then that one is returned.
func (l *links) put(name string, c *supervisor.Client) *supervisor.Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.m[name]; old != nil && old != c {
		c.Close()
		return old
	}
	if l.m == nil {
		l.m = map[string]*supervisor.Client{}
	}
	l.m[name] = c
	return c
}

// drop forgets the connection to a VM.
func (l *links) drop(name string) {
	l.mu.Lock()
	c := l.m[name]
	delete(l.m, name)
	l.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

func (l *links) closeAll() {
	l.mu.Lock()
	m := l.m
	l.m = nil
	l.mu.Unlock()
	for _, c := range m {
		c.Close()
	}
}

// live returns a running instance's lease and guest. The lease is marked used.
// A lease whose VM turns out to be gone is settled first, and the fault says
// how it ended.
func (s *Service) live(ctx context.Context, instanceID string) (store.Lease, *guest.Client, error) {
	l, g, err := s.peek(ctx, instanceID)
	if err != nil {
		return store.Lease{}, nil, err
	}
	if err := s.store.Touch(ctx, instanceID); err != nil && ctx.Err() == nil {
		s.log.Warn("use not recorded", "instance", instanceID, "error", err)
	}
	return l, g, nil
}

// peek is live for a look that is no use of the instance.
func (s *Service) peek(ctx context.Context, instanceID string) (store.Lease, *guest.Client, error) {
	l, err := s.store.LiveLease(ctx, instanceID)
	if err != nil && s.overdueBySetClock(ctx, l) {
		l, err = s.store.LiveLease(ctx, instanceID)
	}
	if err != nil {
		return store.Lease{}, nil, s.ended(ctx, instanceID, err)
	}
	if l.Kind != store.KindInstance {
		return store.Lease{}, nil, fault.New(fault.InstanceNotFound, "%s is a VM of SandboxForge's own (%s), not an instance", instanceID, l.Kind).
			Because("it waits to become an instance, or is made into a template").
			Next("call create_instance: it uses what is ready")
	}
	c, err := s.links.get(ctx, l.BackendInstanceName)
	if err != nil {
		return store.Lease{}, nil, s.unreachable(ctx, l, err)
	}
	return l, c.Guest(), nil
}

// bound is live for tools that need a workspace.
func (s *Service) bound(ctx context.Context, instanceID string) (store.Lease, *guest.Client, error) {
	l, g, err := s.live(ctx, instanceID)
	if err == nil && l.WorkspaceRoot == "" {
		err = fault.New(fault.WorkspaceBindingRequired, "instance %s is not bound to a workspace", instanceID).
			Next("create an instance with workspace_root")
	}
	return l, g, err
}

// ended refines why an instance cannot be used: an end that nobody asked for
// is INSTANCE_LOST with its reason.
func (s *Service) ended(ctx context.Context, instanceID string, err error) error {
	if !fault.Is(err, fault.InstanceTerminal) {
		return err
	}
	l, lerr := s.store.Lease(ctx, instanceID)
	if lerr != nil || !lostReason(l.EndReason) {
		return err
	}
	return fault.New(fault.InstanceLost, "instance %s ended by itself: %s", instanceID, l.EndReason).
		With("instance_id", instanceID).With("status", string(l.Status)).With("ended_at", isoTime(l.EndedAt)).
		Next("create another instance with create_instance").
		Next("read what its tasks last printed with list_tasks and get_task_logs")
}

// lostReason reports whether an end's reason is one that nobody asked for.
func lostReason(reason string) bool {
	switch reason {
	case "", supervisor.ReasonDestroyed, supervisor.ReasonExpired, supervisor.ReasonSignal, reasonCreateFailed, reasonAbandoned:
		return false
	}
	return true
}

// unreachable explains why a running lease's supervisor did not answer.
func (s *Service) unreachable(ctx context.Context, l store.Lease, err error) error {
	s.links.drop(l.BackendInstanceName)
	if !errors.Is(err, supervisor.ErrNotRunning) && !errors.Is(err, supervisor.ErrEnded) {
		return err
	}
	// A supervisor that is ending takes a few seconds to keep the tasks' output
	// and to record why; only then the right reason can be told.
	settle, cancel := detached(ctx, time.Minute)
	defer cancel()
	for patience := time.Now().Add(10 * time.Second); ; {
		s.reconcileLease(settle, l, &GCResult{})
		if _, lerr := s.store.LiveLease(settle, l.InstanceID); lerr != nil {
			return s.ended(settle, l.InstanceID, lerr)
		}
		on, rerr := supervisor.Running(s.instanceDir(l.BackendInstanceName))
		if rerr != nil || !on || ctx.Err() != nil || time.Now().After(patience) {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond): // nothing announces the end of another process
		}
	}
	return fault.Wrap(err, fault.InstanceLost, "the supervisor of instance %s does not answer", l.InstanceID).
		Because("its socket was removed while it runs, or it hangs").
		Next("repeat the call in a few seconds: a supervisor puts its socket back").
		Next("if it stays so, destroy the instance and create another")
}

// guestFault turns an error of a guest call into a fault. The supervisor may
// have ended meanwhile: then the lease is settled and the fault says so.
func (s *Service) guestFault(ctx context.Context, l store.Lease, what string, err error) error {
	var f *fault.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f):
		return err
	case ctx.Err() != nil:
		return fault.Wrap(context.Cause(ctx), fault.Cancelled, "%s was cancelled", what)
	case errors.Is(err, guest.ErrUnavailable) || errors.Is(err, guest.ErrOutcomeUnknown):
		s.links.drop(l.BackendInstanceName)
		probe, cancel := detached(ctx, 30*time.Second)
		defer cancel()
		if c, derr := supervisor.Dial(probe, s.runDir, l.BackendInstanceName); derr == nil {
			s.links.put(l.BackendInstanceName, c)
		} else if lost := s.unreachable(probe, l, derr); lost != nil {
			return lost
		}
		if errors.Is(err, guest.ErrOutcomeUnknown) {
			return fault.Wrap(err, fault.OutcomeUnknown, "%s: the connection to the guest broke and it is unknown whether it was done", what)
		}
		return fault.Wrap(err, fault.InstanceLost, "%s: the guest of %s does not answer", what, l.InstanceID).
			Because("the guest hangs, is overloaded, or is restarting its agent").
			Next("repeat the call in a few seconds").
			Next("if it stays so, destroy the instance and create another")
	case errors.Is(err, guest.ErrNotFound), errors.Is(err, guest.ErrInvalid), errors.Is(err, guest.ErrFailedPrecondition),
		errors.Is(err, guest.ErrPermission), errors.Is(err, guest.ErrAlreadyExists):
		return fault.Wrap(err, fault.InvalidArgument, "%s", what)
	case errors.Is(err, guest.ErrTooLarge):
		return fault.Wrap(err, fault.InvalidArgument, "%s: too large", what)
	default:
		return fault.Wrap(err, fault.BackendCommandFailed, "%s failed in the guest", what)
	}
}
