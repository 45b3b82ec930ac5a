package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"time"
	"unicode/utf8"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/host"
	"sandboxforge/internal/store"
	"sandboxforge/internal/supervisor"
	"sandboxforge/internal/workspace"
)

// A snapshot is a directory with the backend's saved state and, beside it, the
// source's sync manifests. Its row is written first and goes last, as with
// instances.

// saveTimeout bounds the writing of a state. It takes seconds; a disk that is
// busy with others takes longer.
const saveTimeout = 5 * time.Minute

// Bounds of what callers say about a snapshot, in characters.
const (
	maxSnapshotName        = 100
	maxSnapshotDescription = 2000
)

func (s *Service) snapshotDir(id string) string { return filepath.Join(s.snapDir, id) }

// stateDir is the backend's part of a snapshot's directory.
func stateDir(snapshot string) string { return filepath.Join(snapshot, "state") }

// syncDir is where a snapshot keeps its source's sync manifests.
func syncDir(snapshot string) string { return filepath.Join(snapshot, "sync") }

// SnapshotInstance saves the whole state of an instance, memory included, and
// returns when it is complete. The instance stands still for a moment and goes
// on. A failed or cancelled call leaves no snapshot; once the state is being
// written, the write is finished behind a cancelled call and then removed. A
// repeat that fails while it looks for what an earlier call made leaves that as
// it is, for the next repeat.
func (s *Service) SnapshotInstance(ctx context.Context, r SnapshotInstanceRequest) (*SnapshotInstanceResult, error) {
	id := r.RequestID
	r.RequestID = ""
	return once(ctx, s, "snapshot_instance", id, r, func(ctx context.Context, req *store.Request) (*SnapshotInstanceResult, bool, error) {
		return s.snapshotInstance(ctx, r, req)
	})
}

func (s *Service) snapshotInstance(ctx context.Context, r SnapshotInstanceRequest, req *store.Request) (*SnapshotInstanceResult, bool, error) {
	began := s.now()
	if err := checkSnapshotText(r.Name, r.Description); err != nil {
		return nil, false, err
	}
	if req != nil && req.SnapshotID != "" {
		if res, err := s.resumeSnapshot(ctx, req); res != nil || err != nil {
			return res, true, err
		}
	}
	l, _, err := s.saveable(ctx, r.InstanceID)
	if err != nil {
		return nil, false, err
	}
	sn, _, done, err := s.beginSnapshot(ctx, l, store.NewSnapshot{
		Kind: store.SnapshotKept, Name: r.Name, Description: r.Description, Request: req,
	}, nil, store.Limits{})
	if err != nil {
		return nil, false, err
	}
	defer done()
	timings := map[string]int64{"checks": s.now().Sub(began).Milliseconds()}
	sn, err = s.save(ctx, sn, l)
	if err == nil {
		report(ctx, Progress{Stage: "saved", Message: sn.SnapshotID + " is ready"})
		if ctx.Err() != nil {
			s.discard(ctx, sn)
			err = fault.Wrap(context.Cause(ctx), fault.Cancelled, "snapshot_instance was cancelled and its snapshot removed")
		}
	}
	s.record(ctx, "snapshot_instance", l.InstanceID, "", err, map[string]any{"snapshot_id": sn.SnapshotID, "pause_us": sn.Pause.Microseconds()})
	if err != nil {
		return nil, false, err
	}
	timings["total"] = s.now().Sub(began).Milliseconds()
	return snapshotResult(sn, nil, timings), true, nil
}

func snapshotResult(sn store.Snapshot, children map[string][]string, timings map[string]int64) *SnapshotInstanceResult {
	return &SnapshotInstanceResult{Snapshot: snapshotView(sn, children), TimingsMS: timings}
}

// resumeSnapshot goes on where a server died that was working on the same
// request. It returns nothing if the snapshot has to be made anew: what was ready
// once and was deleted since is not.
func (s *Service) resumeSnapshot(ctx context.Context, req *store.Request) (*SnapshotInstanceResult, error) {
	sn, err := s.store.Snapshot(ctx, req.SnapshotID)
	switch {
	case fault.Is(err, fault.SnapshotNotFound), err == nil && sn.Status == store.SnapshotDeleting:
		// Reconciliation may just have removed one that was never ready: then
		// the request does not know it any more.
		now, _, err := s.store.BeginRequest(ctx, req.Scope, req.ID, req.Fingerprint)
		if err != nil {
			return nil, unsettled{err}
		}
		if now.SnapshotID != "" {
			return nil, req.UnknownFault()
		}
		return nil, nil
	case err != nil:
		return nil, unsettled{err}
	case sn.Status == store.SnapshotReady:
		children, err := s.children(ctx)
		if err != nil {
			return nil, unsettled{err}
		}
		return snapshotResult(sn, children, map[string]int64{}), nil
	}
	return nil, s.clearAttempt(ctx, sn.SnapshotID)
}

func checkSnapshotText(name, description string) error {
	for _, c := range []struct {
		field, text string
		most        int
	}{{"name", name, maxSnapshotName}, {"description", description, maxSnapshotDescription}} {
		if n := utf8.RuneCountInString(c.text); n > c.most {
			return fault.New(fault.InvalidArgument, "%s has %d characters; at most %d are allowed", c.field, n, c.most)
		}
	}
	return nil
}

// saveable returns a running instance whose backend can save its state.
func (s *Service) saveable(ctx context.Context, instanceID string) (store.Lease, Selected, error) {
	l, _, err := s.live(ctx, instanceID)
	if err != nil {
		return l, Selected{}, err
	}
	if l.Kind != store.KindInstance {
		return l, Selected{}, fault.New(fault.InvalidArgument, "%s is no instance: it belongs to the server (%s)", instanceID, l.Kind)
	}
	sel, err := s.backends.ByName(l.Backend)
	if err != nil {
		return l, sel, err
	}
	_, err = keeperOf(sel.Backend)
	return l, sel, err
}

// keeperOf is a backend that can save states and begin in them.
func keeperOf(b backend.Backend) (backend.StateKeeper, error) {
	k, ok := b.(backend.StateKeeper)
	if c := b.Capabilities(); !ok || !c.Snapshots || !c.Clones {
		return nil, fault.New(fault.UnsupportedByBackend, "the %s backend cannot save the state of a running VM", b.Name()).
			Because("snapshots and forks need memory snapshots and clones, see capabilities in list_instances").
			Next("make further instances with create_instance instead")
	}
	return k, nil
}

// beginSnapshot admits a snapshot, with the leases of children where there are
// to be any, before anything stands still. Until done is called they are this
// call's.
func (s *Service) beginSnapshot(ctx context.Context, l store.Lease, n store.NewSnapshot, children func(store.Snapshot) []store.NewLease, lim store.Limits) (sn store.Snapshot, leases []store.Lease, done func(), err error) {
	if err := os.MkdirAll(s.snapDir, 0o700); err != nil {
		return sn, nil, nil, fault.Wrap(err, fault.Internal, "the directory for snapshots cannot be made").
			Next("make %s writable", s.snapDir)
	}
	n.InstanceID = l.InstanceID
	n.Dir = s.snapshotDir
	n.ReservedBytes = l.MemoryMiB << 20
	free, err := host.DiskFree(s.snapDir)
	if err != nil {
		s.log.Warn("free disk unknown", "error", err)
		free = math.MaxInt64
	}
	// One byte stands for none at all: 0 would be no limit.
	left := max(1, free-int64(diskHeadroomGiB*gib))
	s.admitting.Add(1)
	defer s.admitting.Add(-1)
	sn, leases, err = s.store.BeginSnapshot(ctx, n, store.SnapshotLimits{CapBytes: s.settings.SnapshotCap, FreeBytes: left}, children, lim)
	if err != nil {
		return sn, nil, nil, err
	}
	release := []func(){s.busy(sn.SnapshotID)}
	for _, c := range leases {
		release = append(release, s.busy(c.InstanceID))
	}
	return sn, leases, func() {
		for _, f := range release {
			f()
		}
	}, nil
}

// save writes the state of a snapshot that was begun, and makes it ready. When
// it fails, nothing is left of the snapshot.
func (s *Service) save(ctx context.Context, sn store.Snapshot, l store.Lease) (store.Snapshot, error) {
	report(ctx, Progress{Stage: "save", Message: "saving the state of " + l.InstanceID})
	type outcome struct {
		sn  store.Snapshot
		err error
	}
	saved := make(chan outcome)
	busy := s.busy(sn.SnapshotID) // also when the caller is gone
	s.wg.Go(func() {
		defer busy()
		work, cancel := detached(ctx, saveTimeout)
		defer cancel()
		var o outcome
		if o.sn, o.err = s.write(work, sn, l, ctx.Err); o.err != nil {
			s.discard(work, sn)
		}
		select {
		case saved <- o:
		case <-ctx.Done(): // nobody waits for it any more
			if o.err == nil {
				s.discard(work, o.sn)
			}
		}
	})
	select {
	case o := <-saved:
		return o.sn, o.err
	case <-ctx.Done():
		return sn, fault.Wrap(context.Cause(ctx), fault.Cancelled, "saving %s was cancelled; what was written is removed", l.InstanceID)
	}
}

// write makes the files of a snapshot. It begins no step that costs the guest
// time, or the host's disk work, once unwanted returns an error.
func (s *Service) write(ctx context.Context, sn store.Snapshot, l store.Lease, unwanted func() error) (store.Snapshot, error) {
	err := os.MkdirAll(sn.Dir, 0o700)
	if err == nil {
		// Before the state: a manifest may be older than its guest, never newer.
		err = workspace.CopyManifests(s.manifestDir(l), syncDir(sn.Dir))
	}
	if err != nil {
		return sn, fault.Wrap(err, fault.Internal, "the snapshot's directory cannot be written").
			Next("make %s writable, and look whether its disk is full", s.snapDir)
	}
	c, err := s.links.get(ctx, l.BackendInstanceName)
	if err != nil {
		return sn, s.unreachable(ctx, l, err)
	}
	if err := unwanted(); err != nil {
		return sn, err
	}
	st, err := c.Save(ctx, stateDir(sn.Dir), false)
	if err != nil {
		return sn, s.saveFault(ctx, l, err)
	}
	if err := unwanted(); err != nil {
		return sn, err
	}
	if sn.Kind == store.SnapshotKept {
		if err := s.makeLast(ctx, sn); err != nil {
			return sn, err
		}
	}
	ready, err := s.store.MoveSnapshot(ctx, sn.SnapshotID, sn.Generation, store.SnapshotReady, &store.Saved{
		Pause: st.Pause, MemoryBytes: st.MemoryBytes, DiskBytes: st.DiskBytes, Accelerator: st.Accelerator,
	})
	if err != nil {
		return sn, err
	}
	s.log.Info("state saved", "snapshot", sn.SnapshotID, "instance", l.InstanceID, "pause", st.Pause)
	return ready, nil
}

// makeLast settles a saved state: a fork's is needed by VMs that do not outlive
// the host's next boot, a snapshot may be.
func (s *Service) makeLast(ctx context.Context, sn store.Snapshot) error {
	report(ctx, Progress{Stage: "settle", Message: "the instance goes on; writing the snapshot to the disk"})
	sel, err := s.backends.ByName(sn.Backend)
	if err != nil {
		return err
	}
	keeper, err := keeperOf(sel.Backend)
	if err != nil {
		return err
	}
	err = keeper.SettleState(ctx, stateDir(sn.Dir))
	if err == nil {
		err = workspace.SettleManifests(syncDir(sn.Dir))
	}
	for _, dir := range []string{sn.Dir, s.snapDir, filepath.Dir(s.snapDir)} {
		if err == nil {
			err = flushDir(dir)
		}
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.Wrap(err, fault.InsufficientDisk, "no space on the host for snapshot %s", sn.SnapshotID).
			Next("free space, or delete_snapshot what is no longer needed (list_snapshots shows sizes)")
	}
	return err
}

// saveFault says what became of a save that failed: its supervisor may have died
// of it. One that took too long goes on in the supervisor.
func (s *Service) saveFault(ctx context.Context, l store.Lease, err error) error {
	s.links.drop(l.BackendInstanceName)
	if ctx.Err() != nil {
		return fault.Wrap(err, fault.BackendCommandFailed, "the state of %s was not saved within %v", l.InstanceID, saveTimeout).
			Because("the host's disk is slow, or busy with others").
			Next("repeat the call when the host is less busy").
			With("instance_id", l.InstanceID)
	}
	probe, cancel := detached(ctx, 30*time.Second)
	defer cancel()
	c, derr := supervisor.Dial(probe, s.runDir, l.BackendInstanceName)
	if derr != nil {
		return s.unreachable(probe, l, derr)
	}
	s.links.put(l.BackendInstanceName, c)
	if errors.Is(err, supervisor.ErrEnded) {
		return s.unreachable(probe, l, err)
	}
	return err
}

// childLease is the lease of an instance that begins in a snapshot: it takes
// over what the guest already has.
func childLease(sn store.Snapshot, expires time.Time) store.NewLease {
	var spec leaseSpec
	_ = json.Unmarshal(sn.Spec, &spec) // written by admit
	spec.VM.From = stateDir(sn.Dir)
	spec.VM.MemoryFile = false
	spec.Shape = ""
	text, _ := json.Marshal(spec) // it was JSON before
	return store.NewLease{
		Kind: store.KindInstance, Backend: sn.Backend, ProfileName: sn.ProfileName,
		WorkspaceRoot: sn.WorkspaceRoot, WorkspaceID: sn.WorkspaceID, ExpiresAt: expires,
		MemoryMiB: sn.VMMemoryMiB, DiskBytes: sn.VMDiskBytes, CPUs: sn.VMCPUs,
		RuntimeName: sn.RuntimeName, RuntimeReady: sn.RuntimeReady, DockerCommand: sn.DockerCommand, RemotePath: sn.RemotePath,
		Config: sn.Config, Spec: text, Connection: sn.Connection, ParentSnapshot: sn.SnapshotID,
	}
}

// childCheck is the hostCheck of a VM like l's. reserved bytes of the disk are
// spoken for.
func (s *Service) childCheck(ctx context.Context, memoryMiB, diskBytes int64, cpus int, root string, tree json.RawMessage, reserved int64) hostCheck {
	c := hostCheck{
		workspaceRoot: root, given: true,
		vm: config.VMConfig{CPUs: cpus, MemoryGiB: float64(memoryMiB) / 1024, DiskGiB: float64(diskBytes) / gib},
	}
	_ = json.Unmarshal(tree, &c.config) // written by admit; only shown
	c = s.measureHost(ctx, c)
	c.diskFree = max(0, c.diskFree-reserved)
	return c
}

// bringUpChild is bringUp for an instance that begins in a snapshot.
func (s *Service) bringUpChild(ctx context.Context, sel Selected, sn store.Snapshot, l store.Lease, timings map[string]int64) (store.Lease, error) {
	if err := workspace.CopyManifests(syncDir(sn.Dir), s.manifestDir(l)); err != nil {
		return l, fault.Wrap(err, fault.Internal, "the sync manifests of %s cannot be copied", sn.SnapshotID)
	}
	// A state goes on under the accelerator that it was saved under.
	sel.Report.Accelerator = sn.Accelerator
	running, err := s.bringUp(ctx, sel, l, timings)
	if errors.Is(err, backend.ErrStateUnfit) {
		return running, unfit(sn, err)
	}
	return running, err
}

// unfit is the fault for a snapshot that cannot be used here any more.
func unfit(sn store.Snapshot, err error) error {
	return fault.Wrap(err, fault.BackendCommandFailed, "snapshot %s cannot be used", sn.SnapshotID).
		Because("its files were changed or lost, or the hypervisor, the guest image or the host's CPU are not those that it was saved with").
		Next("delete_snapshot %s, and make a new instance with create_instance", sn.SnapshotID).
		With("snapshot_id", sn.SnapshotID)
}

// taskWarning says what becomes of the source's tasks in a child.
func taskWarning(sn store.Snapshot) []string {
	if sn.RunningTasks == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d task(s) of %s were running when it was saved. Their processes go on in the new VM too, but are no tasks there: find them with ps in run_command.",
		sn.RunningTasks, sn.InstanceID)}
}
