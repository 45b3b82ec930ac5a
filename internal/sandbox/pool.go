package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/store"
	"sandboxforge/internal/template"
)

// The pool is VMs that wait to become instances: clones with a lease of their
// own kind, which any server on the same database may claim, whoever made them.
// A server makes new ones for the shapes that its own creates asked for lately.
const (
	// poolTTL is how long a VM waits; the last server that stops leaves VMs
	// behind for no longer than this.
	poolTTL = 30 * time.Minute
	// poolSpare is how long a VM must still have to be claimed: its own
	// deadline is moved after the claim.
	poolSpare = time.Minute
	// poolInUse is how long after its last create a shape is kept ready.
	poolInUse = 30 * time.Minute
	// claimTries bounds how many ready VMs that turn out dead a create looks at.
	claimTries = 3
	// claimAnswer bounds the wait for a claimed VM's guest.
	claimAnswer = 5 * time.Second
)

// pool is what this process knows of the pool.
type pool struct {
	mu     sync.Mutex
	shapes map[string]*poolShape
	wake   chan struct{} // holds one token; nil until the pool is kept

	creates int           // that are under way
	quiet   chan struct{} // closed when there are none; nil then
}

// poolShape is a kind of VM that is kept ready.
type poolShape struct {
	shape string
	sel   Selected
	spec  backend.Spec // From is set
	used  time.Time
}

// shapeOf names what a pool's VM can become: a clone of one saved state, with
// a disk of one size.
func shapeOf(spec backend.Spec) string { return fmt.Sprintf("%s %d", spec.From, spec.DiskBytes) }

// create notes that a create is under way: the pool waits until it is done.
func (p *pool) create() (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.creates++; p.creates == 1 {
		p.quiet = make(chan struct{})
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.creates--; p.creates == 0 {
			close(p.quiet)
			p.quiet = nil
		}
	}
}

// awaitQuiet returns when no create is under way.
func (p *pool) awaitQuiet(ctx context.Context) error {
	for {
		p.mu.Lock()
		quiet := p.quiet
		p.mu.Unlock()
		if quiet == nil {
			return context.Cause(ctx)
		}
		select {
		case <-quiet:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// use notes that a shape was asked for, and has its pool filled.
func (p *pool) use(now time.Time, sel Selected, spec backend.Spec) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wake == nil {
		return
	}
	shape := shapeOf(spec)
	p.shapes[shape] = &poolShape{shape, sel, spec, now}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// inUse lists the shapes to keep ready and forgets the others.
func (p *pool) inUse(now time.Time) (list []poolShape) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, s := range p.shapes {
		if now.Sub(s.used) > poolInUse {
			delete(p.shapes, k)
			continue
		}
		list = append(list, *s)
	}
	return list
}

// claimReady makes a ready VM of o's template the instance that n describes.
// The error is store.ErrNoneReady if there is none that works.
func (s *Service) claimReady(ctx context.Context, sel Selected, spec backend.Spec, n store.NewLease, timings map[string]int64) (store.Lease, func(), error) {
	began := s.now()
	n.StartKind = startWarm
	for range claimTries {
		s.admitting.Add(1)
		l, err := s.store.Claim(ctx, shapeOf(spec), poolSpare, n, store.Limits{MaxInstances: s.settings.MaxInstances})
		if err != nil {
			s.admitting.Add(-1)
			return store.Lease{}, nil, err
		}
		done := s.busy(l.InstanceID)
		s.admitting.Add(-1)
		if err = s.greet(ctx, l); err == nil {
			timings["claim"] = s.now().Sub(began).Milliseconds()
			return l, done, nil
		}
		s.log.Warn("a ready VM does not answer", "instance", l.InstanceID, "error", err)
		left := s.undoCreate(ctx, l, fault.Wrap(err, fault.InstanceLost, "the ready VM did not answer"))
		done()
		if ctx.Err() != nil {
			return store.Lease{}, nil, cancelledCall(ctx, "create_instance", "its VM", remnant{l.InstanceID, left})
		}
	}
	return store.Lease{}, nil, store.ErrNoneReady
}

// greet gives a claimed VM its new deadline, and sees that its guest answers.
func (s *Service) greet(ctx context.Context, l store.Lease) error {
	ctx, cancel := context.WithTimeout(ctx, claimAnswer)
	defer cancel()
	if err := s.setDeadline(ctx, l); err != nil {
		return err
	}
	c, err := s.links.get(ctx, l.BackendInstanceName)
	if err == nil {
		_, err = c.Guest().Ping(ctx)
	}
	return err
}

// keepPool fills the pool until the service closes, one VM at a time and never
// while a create is under way.
func (s *Service) keepPool() {
	if s.settings.WarmPool == 0 || !s.settings.Templates {
		return
	}
	p := &s.pool
	p.mu.Lock()
	p.shapes, p.wake = map[string]*poolShape{}, make(chan struct{}, 1)
	p.mu.Unlock()
	s.wg.Go(func() {
		tick := time.NewTicker(s.settings.SweeperInterval)
		defer tick.Stop()
		for {
			select {
			case <-s.root.Done():
				return
			case <-p.wake:
			case <-tick.C:
			}
			for _, shape := range p.inUse(s.now()) {
				if err := s.fill(s.root, shape); err != nil && s.root.Err() == nil {
					s.log.Warn("the pool is not filled", "image", orName(shape.spec.Image), "error", err)
				}
			}
		}
	})
}

// errPoolFull ends the filling of a shape.
var errPoolFull = errors.New("as many VMs are ready as are wanted")

// fill makes ready VMs of a shape until there are enough.
func (s *Service) fill(ctx context.Context, p poolShape) error {
	st := s.templateStore(p.sel)
	for st != nil && st.InForce(p.spec.From) {
		if err := s.pool.awaitQuiet(ctx); err != nil {
			return err
		}
		err := s.addReady(ctx, p)
		if errors.Is(err, errPoolFull) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// warmUp runs in a VM that waits what every command needs, since an emulator
// translates code when it first runs.
func (s *Service) warmUp(ctx context.Context, l store.Lease) {
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	c, err := s.links.get(ctx, l.BackendInstanceName)
	id := guest.NewID("ready-")
	for i := 0; i < 2 && err == nil; i++ {
		if _, err = c.Guest().Run(ctx, id, guest.Spec{Command: "true"}, nil); err == nil {
			err = c.Guest().Forget(ctx, id)
		}
	}
	if err != nil && ctx.Err() == nil {
		s.log.Info("a ready VM could not be warmed up", "instance", l.InstanceID, "error", err)
	}
}

// addReady makes one ready VM, unless there are enough: servers that fill the
// same pool at once make no more together.
func (s *Service) addReady(ctx context.Context, p poolShape) error {
	raw, err := json.Marshal(leaseSpec{VM: p.spec, Shape: p.shape})
	if err != nil {
		return err
	}
	check := s.measureHost(ctx, hostCheck{vm: config.VMConfig{CPUs: p.spec.CPUs, MemoryGiB: float64(p.spec.MemoryMiB) / 1024, DiskGiB: float64(p.spec.DiskBytes) / gib}})
	decide := func(u store.Usage) error {
		have := 0
		for _, l := range u.Live {
			if l.Kind == store.KindPool && specOf(l).Shape == p.shape {
				have++
			}
		}
		if have >= s.settings.WarmPool {
			return errPoolFull
		}
		return check.decide(u)
	}
	s.admitting.Add(1)
	l, err := s.store.Admit(ctx, store.NewLease{
		Kind: store.KindPool, Backend: p.sel.Backend.Name(), ProfileName: "default", ExpiresAt: s.now().Add(poolTTL),
		MemoryMiB: p.spec.MemoryMiB, DiskBytes: p.spec.DiskBytes, CPUs: p.spec.CPUs, Spec: raw,
	}, store.Limits{Decide: decide})
	if err != nil {
		s.admitting.Add(-1)
		return err
	}
	done := s.busy(l.InstanceID)
	s.admitting.Add(-1)
	defer done()
	if l, err = s.bringUp(ctx, p.sel, l, map[string]int64{}); err != nil {
		s.undoCreate(ctx, l, err)
		return err
	}
	// From here on anybody may claim it: what goes wrong now is not undone.
	s.warmUp(ctx, l)
	s.log.Info("VM ready in the pool", "instance", l.InstanceID, "image", orName(p.spec.Image))
	return nil
}

// retireReady ends a pool's VM, unless it was claimed meanwhile; did says
// whether it was ended. It is moved by its generation alone, so that a claim
// is never undone.
func (s *Service) retireReady(ctx context.Context, l store.Lease, reason string) (did bool, err error) {
	defer s.busy(l.InstanceID)()
	moved, err := s.store.Move(ctx, l.InstanceID, l.Generation, store.Move{To: store.Destroying, Reason: reason})
	if errors.Is(err, store.ErrConflict) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, err = s.teardown(ctx, moved, store.Destroying, reason, 0)
	return err == nil, err
}

// shrinkPool ends one ready VM, so that an instance that was asked for finds
// room. It prefers shapes other than the one asked for.
func (s *Service) shrinkPool(ctx context.Context, keep string) bool {
	all, err := s.store.Leases(ctx, store.LeaseFilter{Kind: store.KindPool, Statuses: []store.Status{store.Running}})
	if err != nil {
		return false
	}
	for _, same := range []bool{false, true} {
		for _, l := range all {
			if (specOf(l).Shape == keep) != same {
				continue
			}
			work, cancel := detached(ctx, undoTimeout)
			did, err := s.retireReady(work, l, "an instance needed its room")
			cancel()
			if err != nil {
				s.log.Warn("a ready VM is not removed yet", "instance", l.InstanceID, "error", err)
			}
			if did {
				return true
			}
		}
	}
	return false
}

// withRoom admits what begins in a snapshot: where the host has no room for it,
// ready VMs make some, one at a time, before it is refused.
func (s *Service) withRoom(ctx context.Context, admit func() error) error {
	for {
		err := admit()
		if !fault.Is(err, fault.InsufficientHostResources) || !s.shrinkPool(ctx, "") {
			return err
		}
	}
}

// reconcileReady retires a pool's VM whose template is out of force: it would
// never be claimed.
func (s *Service) reconcileReady(ctx context.Context, l store.Lease, res *GCResult) (retired bool) {
	sel, err := s.backends.ByName(l.Backend)
	if err != nil {
		return false
	}
	from := specOf(l).VM.From
	var st *template.Store
	if keeper, ok := sel.Backend.(backend.StateKeeper); ok {
		st = s.templatesOf(keeper)
	}
	if st == nil || from == "" || st.InForce(from) {
		return false
	}
	a := GCAction{Action: "recorded_end", InstanceID: l.InstanceID, Name: l.BackendInstanceName, Reason: "its template is out of force"}
	work, cancel := detached(ctx, undoTimeout)
	defer cancel()
	did, err := s.retireReady(work, l, a.Reason)
	if err != nil {
		res.failed(a, err)
	} else if did {
		res.did(a)
	}
	return true
}
