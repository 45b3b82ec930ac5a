package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/hostpath"
	"sandboxforge/internal/store"
	"sandboxforge/internal/supervisor"
)

// undoTimeout bounds the clean-up after a create that failed.
const undoTimeout = 90 * time.Second

// How an instance came to be (start_kind).
const (
	startCold  = "cold"  // booted
	startClone = "clone" // began in a saved state
	startWarm  = "warm"  // taken from the pool
)

// cloneTimeout bounds the start of a VM that begins in a saved state, which
// takes a second where a boot takes many.
const cloneTimeout = time.Minute

// End reasons of leases that never became an instance.
const (
	reasonCreateFailed = "create failed"
	reasonAbandoned    = "the process that was creating it ended"
)

// CreateInstance makes a VM for a workspace and returns when its guest
// answers, or later if a bootstrap is asked for. When it fails or is
// cancelled before the guest answers, nothing is left behind; a bootstrap that
// fails keeps the VM, and the fault carries instance_id.
func (s *Service) CreateInstance(ctx context.Context, r CreateInstanceRequest) (*CreateInstanceResult, error) {
	id := r.RequestID
	r.RequestID = ""
	return once(ctx, s, "create_instance", id, r, func(ctx context.Context, req *store.Request) (*CreateInstanceResult, bool, error) {
		return s.createInstance(ctx, r, req)
	})
}

func (s *Service) createInstance(ctx context.Context, r CreateInstanceRequest, req *store.Request) (*CreateInstanceResult, bool, error) {
	began := s.now()
	defer s.pool.create()()
	if req != nil && req.InstanceID != "" {
		if res, changed, err := s.resumeCreate(ctx, r, req); res != nil || err != nil {
			return res, changed, err
		}
	}
	root, err := s.workspaceRoot(r.WorkspaceRoot)
	if err != nil {
		return nil, false, err
	}
	ttl, err := s.leaseTTL(r.TTLMinutes)
	if err != nil {
		return nil, false, err
	}
	if err := s.resolveConfig(root, r.Overrides).Err(); err != nil {
		return nil, false, err
	}
	report(ctx, Progress{Stage: "backend", Message: "checking the hypervisor"})
	sel, err := s.selectBackend(ctx)
	if err != nil {
		return nil, false, err
	}
	res := s.resolveConfig(root, r.Overrides)
	if err := res.Err(); err != nil {
		return nil, false, err
	}
	timings := map[string]int64{"checks": s.now().Sub(began).Milliseconds()}
	if err := s.roomForOne(ctx); err != nil {
		return nil, false, err
	}
	spec := vmSpec(res.Config.VM)
	room := func() error { return s.roomFor(ctx, root, res) }
	if err := s.prepareKind(ctx, sel, spec, room, timings); err != nil {
		return nil, false, err
	}
	from, prepared := origin{}, false
	if orDefault(r.AutoBootstrap, true) {
		// Only a bootstrap gives the services' servers passwords of their own.
		from, prepared = s.preparedOrigin(ctx, sel, spec, res.Config)
	}
	if !prepared {
		if from, err = s.originOf(ctx, sel, spec, room, timings); err != nil {
			return nil, false, err
		}
	}
	if from.template != nil {
		spec.From = from.template.State
	}

	lease, warnings, done, err := s.obtain(ctx, r, root, ttl, sel, res, spec, from, req, timings)
	if err != nil {
		return nil, false, err
	}
	defer done()
	timings["total"] = s.now().Sub(began).Milliseconds()
	out := s.createResult(lease, sel, r, timings)
	out.Warnings = append(s.ttlWarning(r.TTLMinutes, lease.ExpiresAt), warnings...)

	if err := s.bootstrap(ctx, lease, r, out, began, req != nil); err != nil {
		return nil, true, err
	}
	s.record(ctx, "create_instance", lease.InstanceID, "", nil, map[string]any{"timings_ms": timings, "start_kind": lease.StartKind, "warnings": out.Warnings})
	return out, true, nil
}

// prepareKind lets a backend make ready what VMs of this kind begin with, before
// there is a lease whose time it would take, if there is room for the VM. A create
// goes on without it, and the next ones do not try again for a while.
func (s *Service) prepareKind(ctx context.Context, sel Selected, spec backend.Spec, room func() error, timings map[string]int64) error {
	p, ok := sel.Backend.(backend.Preparer)
	if !ok {
		return nil
	}
	kind := backend.Spec{Name: sel.Backend.Name(), Arch: spec.Arch, Image: spec.Image, Template: spec.Template, VMType: spec.VMType}
	if failed, ok := s.unprepared.Load(kind); ok && s.now().Sub(failed.(time.Time)) < templateRest {
		return nil
	}
	if err := room(); err != nil {
		return err
	}
	began := s.now()
	err := p.Prepare(ctx, spec, func(stage, message string) { report(ctx, Progress{Stage: stage, Message: message}) })
	timings["prepare"] = s.now().Sub(began).Milliseconds()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		s.unprepared.Store(kind, s.now())
		s.log.Warn("nothing was made ready for this kind of VM", "backend", kind.Name, "error", err)
	}
	return nil
}

// obtain returns a running VM with its lease: a ready one of the pool, or else a
// new one. When it fails nothing is left. The caller calls done when it has
// finished with the lease.
func (s *Service) obtain(ctx context.Context, r CreateInstanceRequest, root string, ttl time.Duration, sel Selected, res *config.Resolved, spec backend.Spec, from origin, req *store.Request, timings map[string]int64) (lease store.Lease, warnings []string, done func(), err error) {
	n, err := s.newLease(r, root, ttl, sel, res, spec, req)
	if err != nil {
		return lease, nil, nil, err
	}
	if from.template != nil {
		defer s.pool.use(s.now(), sel, spec)
		lease, done, err = s.claimReady(ctx, sel, spec, n, timings)
		if err == nil {
			s.log.Info("ready VM claimed", "instance", lease.InstanceID, "workspace", root, "expires", lease.ExpiresAt)
		}
		if !errors.Is(err, store.ErrNoneReady) {
			return lease, nil, done, err
		}
	}
	check := s.newHostCheck(ctx, root, res)
	for {
		// From its insertion on the lease is this call's: the sweeper of this
		// process must not take it for an abandoned one.
		s.admitting.Add(1)
		lease, err = s.store.Admit(ctx, n, store.Limits{MaxInstances: s.settings.MaxInstances, Decide: check.decide})
		if err == nil {
			break
		}
		s.admitting.Add(-1)
		if !noRoom(err) || !s.shrinkPool(ctx, shapeOf(spec)) {
			return lease, nil, nil, err
		}
		check = s.newHostCheck(ctx, root, res)
	}
	done = s.busy(lease.InstanceID)
	s.admitting.Add(-1)
	log := s.log.With("instance", lease.InstanceID)
	log.Info("creating instance", "workspace", root, "backend", lease.Backend, "expires", lease.ExpiresAt)
	lease, warnings, err = s.bringUpFrom(ctx, sel, lease, from, timings)
	if err != nil {
		log.Warn("create failed", "error", err)
		err = notRemoved(fault.From(err), remnant{lease.InstanceID, s.undoCreate(ctx, lease, err)})
		done()
		s.record(ctx, "create_instance", lease.InstanceID, "", err, nil)
		return lease, nil, nil, err
	}
	return lease, warnings, done, nil
}

// roomForOne refuses early what admit would refuse: a create may wait for its
// template before it is admitted.
func (s *Service) roomForOne(ctx context.Context) error {
	return s.store.Room(ctx, store.Limits{MaxInstances: s.settings.MaxInstances})
}

// roomFor refuses early what the host cannot carry, before minutes are spent on
// a template for a VM that will not be admitted. It holds nothing for the VM:
// the admission decides.
func (s *Service) roomFor(ctx context.Context, root string, res *config.Resolved) error {
	u, err := s.store.Usage(ctx)
	if err != nil {
		return err
	}
	return s.newHostCheck(ctx, root, res).early(u)
}

// vmSpec is the VM that a configuration asks for.
func vmSpec(vm config.VMConfig) backend.Spec {
	return backend.Spec{
		CPUs: vm.CPUs, MemoryMiB: vm.MemoryMiB(), DiskBytes: vm.DiskBytes(), Arch: vm.GOARCH(),
		Image: vm.Image, Template: vm.Template, VMType: vm.VMType,
	}
}

// bootstrap prepares the workspace of a new instance, if that was asked for,
// and adds what came of it to out. A bootstrap that fails keeps the VM. One
// that was cancelled by a caller who cannot come back for the instance, having
// given no request_id, does not.
func (s *Service) bootstrap(ctx context.Context, lease store.Lease, r CreateInstanceRequest, out *CreateInstanceResult, began time.Time, resumable bool) error {
	if !orDefault(r.AutoBootstrap, true) {
		return nil
	}
	boot, err := s.PrepareWorkspace(ctx, PrepareWorkspaceRequest{InstanceID: lease.InstanceID, WaitForReady: r.WaitForReady})
	if err == nil {
		out.Bootstrap = boot
		out.Warnings = append(out.Warnings, boot.Warnings...)
		out.TimingsMS["bootstrap"] = boot.TimingsMS["total"]
		out.TimingsMS["total"] = s.now().Sub(began).Milliseconds()
		return nil
	}
	f := fault.From(err)
	if ctx.Err() != nil && !resumable {
		e := cancelledCall(ctx, "create_instance", "its VM", remnant{lease.InstanceID, s.undoCreate(ctx, lease, f)})
		s.record(ctx, "create_instance", lease.InstanceID, "", e, nil)
		return e
	}
	e := fault.Wrap(f, fault.WorkspaceBootstrapFailed, "instance %s runs, but its workspace could not be prepared", lease.InstanceID).
		Because("%s", f.Error()).
		With("instance_id", lease.InstanceID).
		With("expires_at", isoTime(lease.ExpiresAt)).
		With("bootstrap_error", map[string]any{"error_code": f.Code, "message": f.Message, "details": f.DetailMap()}).
		Next("call prepare_workspace with instance_id %s once the cause is mended; the VM was kept", lease.InstanceID).
		Next("or call destroy_instance to give it up")
	s.record(ctx, "create_instance", lease.InstanceID, "", e, nil)
	return e
}

// resumeCreate goes on where a server died that was working on the same
// request. It returns nothing if a new VM has to be made.
func (s *Service) resumeCreate(ctx context.Context, r CreateInstanceRequest, req *store.Request) (*CreateInstanceResult, bool, error) {
	l, runs, err := s.revisitBound(ctx, req)
	if err != nil || !runs {
		return nil, err != nil, err
	}
	sel, err := s.backends.ByName(l.Backend)
	if err != nil {
		return nil, true, unsettled{err}
	}
	out := s.createResult(l, sel, r, recordedTimings(l))
	if err := s.bootstrap(ctx, l, r, out, s.now(), true); err != nil {
		return nil, true, err
	}
	s.record(ctx, "create_instance", l.InstanceID, "", nil, map[string]any{"resumed": true})
	return out, true, nil
}

// newLease is the lease of an instance that is asked for.
func (s *Service) newLease(r CreateInstanceRequest, root string, ttl time.Duration, sel Selected, res *config.Resolved, vm backend.Spec, req *store.Request) (store.NewLease, error) {
	tree, err := json.Marshal(res.Tree)
	if err != nil {
		return store.NewLease{}, fault.Wrap(err, fault.Internal, "the configuration cannot be recorded")
	}
	overrides, err := json.Marshal(r.Overrides)
	if err != nil {
		return store.NewLease{}, fault.Wrap(err, fault.InvalidArgument, "overrides cannot be recorded")
	}
	spec, err := json.Marshal(leaseSpec{VM: vm, Overrides: overrides})
	if err != nil {
		return store.NewLease{}, fault.Wrap(err, fault.Internal, "the VM's specification cannot be recorded")
	}
	return store.NewLease{
		Kind:          store.KindInstance,
		Backend:       sel.Backend.Name(),
		ProfileName:   "default",
		WorkspaceRoot: root,
		WorkspaceID:   hostpath.WorkspaceID(root),
		ExpiresAt:     s.now().Add(ttl),
		MemoryMiB:     vm.MemoryMiB,
		DiskBytes:     vm.DiskBytes,
		CPUs:          vm.CPUs,
		AutoBootstrap: orDefault(r.AutoBootstrap, true),
		Config:        tree,
		Spec:          spec,
		Request:       req,
	}, nil
}

// leaseSpec is what a lease remembers of the request that made it.
type leaseSpec struct {
	VM        backend.Spec    `json:"vm"`
	Overrides json.RawMessage `json:"overrides,omitempty"`
	// Shape is what a pool's VM can become, see package store's Claim.
	Shape string `json:"shape,omitempty"`
}

// patch records a changed spec.
func (l leaseSpec) patch() (store.Patch, error) {
	b, err := json.Marshal(l)
	if err != nil {
		return store.Patch{}, fault.Wrap(err, fault.Internal, "the VM's specification cannot be recorded")
	}
	return store.Patch{Spec: b}, nil
}

func (l leaseSpec) overrides() map[string]any {
	var m map[string]any
	_ = json.Unmarshal(l.Overrides, &m) // written by admit
	return m
}

func specOf(l store.Lease) leaseSpec {
	var sp leaseSpec
	_ = json.Unmarshal(l.Spec, &sp) // written by admit; a lease of an older schema has none
	return sp
}

// bringUp takes an admitted lease to running. The caller undoes a failure. That
// somebody destroyed it meanwhile is what the error says then, and not which of
// its files was gone first.
func (s *Service) bringUp(ctx context.Context, sel Selected, lease store.Lease, timings map[string]int64) (store.Lease, error) {
	up, err := s.start(ctx, sel, lease, timings)
	if err == nil || ctx.Err() != nil {
		return up, err
	}
	if now, lerr := s.store.Lease(ctx, lease.InstanceID); lerr == nil && now.Generation != lease.Generation && now.Status != store.Running {
		return up, fault.Wrap(err, fault.InstanceTerminal, "instance %s was destroyed while it was being created", lease.InstanceID)
	}
	return up, err
}

// start is bringUp's work.
func (s *Service) start(ctx context.Context, sel Selected, lease store.Lease, timings map[string]int64) (store.Lease, error) {
	name := lease.BackendInstanceName
	spec := specOf(lease).VM
	spec.Name = name
	spec.Hostname = name

	mark := s.now()
	lap := func(what string) {
		timings[what] = s.now().Sub(mark).Milliseconds()
		mark = s.now()
	}
	report(ctx, Progress{Stage: "disk", Message: "making the VM's disk"})
	if err := sel.Backend.Create(ctx, spec); err != nil {
		return lease, err
	}
	lap("disk")
	if now, err := s.store.Lease(ctx, lease.InstanceID); err == nil && now.Status != store.Creating {
		return lease, store.ErrConflict // bringUp says of what
	}
	progress := func(stage, message string) { report(ctx, Progress{Stage: stage, Message: message}) }
	kind, boot := startCold, s.boot
	if spec.From != "" {
		kind, boot = startClone, min(s.boot, cloneTimeout)
	}
	c, err := supervisor.Launch(ctx, supervisor.Options{
		Dir:         s.instanceDir(name),
		RunDir:      s.runDir,
		InstanceID:  lease.InstanceID,
		Backend:     supervisor.BackendRef{Name: sel.Backend.Name(), Config: sel.Config},
		Spec:        spec,
		Accel:       sel.Report.Accelerator,
		Deadline:    lease.ExpiresAt,
		BootTimeout: boot,
		LogLevel:    s.settings.LogLevel.String(),
	}, progress)
	if err != nil {
		return lease, err
	}
	c = s.links.put(name, c)
	lap("supervisor")
	if err := c.WaitReady(ctx, progress); err != nil {
		return lease, err
	}
	lap("boot")
	st, err := c.Status(ctx)
	if err != nil {
		return lease, err
	}
	for k, v := range st.Timings {
		timings["boot_"+k] = v
	}
	tj, _ := json.Marshal(timings) // a map of numbers
	running, err := s.store.Move(ctx, lease.InstanceID, lease.Generation, store.Move{
		To:     store.Running,
		Reason: "the guest answers",
		Patch:  store.Patch{Accelerator: &st.Accelerator, StartKind: &kind, Timings: tj},
	})
	if err != nil {
		return lease, err // the caller needs to know what to undo
	}
	report(ctx, Progress{Stage: "running", Message: running.InstanceID + " is running"})
	return running, nil
}

// undoCreate removes what a failed create made. The lease goes through error,
// where it keeps counting until its VM is confirmed gone. The error says why it
// is not: then the VM may run.
func (s *Service) undoCreate(ctx context.Context, lease store.Lease, cause error) error {
	ctx, cancel := detached(ctx, undoTimeout)
	defer cancel()
	moved, err := s.store.Move(ctx, lease.InstanceID, lease.Generation, store.Move{To: store.Error, Reason: reasonCreateFailed, Err: fault.From(cause)})
	if err != nil {
		// Somebody else owns the clean-up, or the database cannot be written,
		// perhaps for want of the very space that the VM takes.
		s.log.Warn("failed create not recorded", "instance", lease.InstanceID, "error", err)
		moved = lease
		if now, lerr := s.store.Lease(ctx, lease.InstanceID); lerr == nil {
			moved = now
		}
	}
	if moved.Status.Terminal() {
		// Destroyed or expired meanwhile, maybe before there was anything to
		// remove.
		if err = s.removeVM(ctx, moved, reasonCreateFailed, 0); err != nil {
			s.log.Warn("VM of an ended lease not removed yet", "instance", lease.InstanceID, "error", err)
		}
		return err
	}
	if _, err = s.teardown(ctx, moved, store.Destroying, reasonCreateFailed, 0); err != nil {
		s.log.Warn("what a failed create made is not removed", "instance", lease.InstanceID, "error", err)
	}
	return err
}

func (s *Service) createResult(l store.Lease, sel Selected, r CreateInstanceRequest, timings map[string]int64) *CreateInstanceResult {
	return &CreateInstanceResult{
		InstanceID:    l.InstanceID,
		Backend:       l.Backend,
		Status:        string(l.Status),
		CreatedAt:     isoTime(l.CreatedAt),
		ExpiresAt:     isoTime(l.ExpiresAt),
		SSHPort:       port(l.SSHPort),
		WorkspaceRoot: l.WorkspaceRoot,
		WorkspaceID:   l.WorkspaceID,
		AutoBootstrap: l.AutoBootstrap,
		WaitForReady:  r.WaitForReady,
		Capabilities:  sel.Backend.Capabilities(),
		Accelerator:   l.Accelerator,
		StartKind:     l.StartKind,
		TimingsMS:     timings,

		ParentSnapshot: l.ParentSnapshot,
		ParentInstance: l.ParentInstance,
	}
}

func port(p int) *int {
	if p == 0 {
		return nil
	}
	return &p
}
