package sandbox

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
	"sandboxforge/internal/supervisor"
)

// What becomes of snapshots: lists, deletion, reconciliation.

// ListSnapshots lists snapshots, newest first.
func (s *Service) ListSnapshots(ctx context.Context, r ListSnapshotsRequest) (*ListSnapshotsResult, error) {
	all, err := s.store.Snapshots(ctx, store.SnapshotFilter{})
	if err != nil {
		return nil, err
	}
	children, err := s.children(ctx)
	if err != nil {
		return nil, err
	}
	out := &ListSnapshotsResult{Snapshots: []Snapshot{}, CapBytes: s.settings.SnapshotCap}
	for _, sn := range all {
		out.TotalBytes += sn.Bytes()
		if r.InstanceID == "" || r.InstanceID == sn.InstanceID {
			out.Snapshots = append(out.Snapshots, snapshotView(sn, children))
		}
	}
	return out, nil
}

// children is which active instances began in which snapshot.
func (s *Service) children(ctx context.Context) (map[string][]string, error) {
	leases, err := s.store.Leases(ctx, store.LeaseFilter{})
	if err != nil {
		return nil, err
	}
	by := map[string][]string{}
	for _, l := range leases {
		if l.ParentSnapshot != "" {
			by[l.ParentSnapshot] = append(by[l.ParentSnapshot], l.InstanceID)
		}
	}
	return by, nil
}

func snapshotView(sn store.Snapshot, children map[string][]string) Snapshot {
	return Snapshot{
		SnapshotID: sn.SnapshotID, Kind: string(sn.Kind), Status: string(sn.Status), Name: sn.Name, Description: sn.Description,
		InstanceID: sn.InstanceID, ParentSnapshot: sn.ParentSnapshot, Children: orEmpty(children[sn.SnapshotID]),
		WorkspaceRoot: sn.WorkspaceRoot, WorkspaceID: sn.WorkspaceID, Backend: sn.Backend, Accelerator: sn.Accelerator,
		CreatedAt: isoTime(sn.CreatedAt), PauseMS: pauseMS(sn), MemoryBytes: sn.MemoryBytes, DiskBytes: sn.DiskBytes,
		CPUs: sn.VMCPUs, MemoryMiB: sn.VMMemoryMiB, RunningTasks: sn.RunningTasks,
	}
}

func pauseMS(sn store.Snapshot) float64 { return float64(sn.Pause.Microseconds()) / 1000 }

func (s *Service) snapshotTotals(ctx context.Context) (count int, bytes int64, err error) {
	all, err := s.store.Snapshots(ctx, store.SnapshotFilter{})
	for _, sn := range all {
		count, bytes = count+1, bytes+sn.Bytes()
	}
	return count, bytes, err
}

// DeleteSnapshot removes a snapshot. One that instances began in, and that
// exist, is refused, and the fault names them. Once begun it is finished even
// if the caller leaves.
func (s *Service) DeleteSnapshot(ctx context.Context, r DeleteSnapshotRequest) (*DeleteSnapshotResult, error) {
	sn, err := s.store.Snapshot(ctx, r.SnapshotID)
	if err != nil {
		return nil, err
	}
	if sn.Status == store.SnapshotCreating && s.snapshotAtWork(sn) {
		// It may have become ready since.
		if sn, err = s.store.ReadySnapshot(ctx, r.SnapshotID); err != nil {
			return nil, err
		}
	}
	report(ctx, Progress{Stage: "delete", Message: "removing " + sn.SnapshotID})
	work, cancel := detached(ctx, 2*time.Minute)
	defer cancel()
	err = s.removeSnapshot(work, sn)
	s.record(ctx, "delete_snapshot", sn.InstanceID, "", err, map[string]any{"snapshot_id": sn.SnapshotID})
	if err != nil {
		return nil, err
	}
	_, err = os.Lstat(sn.Dir)
	return &DeleteSnapshotResult{SnapshotID: sn.SnapshotID, Status: "deleted", DiskKept: err == nil}, nil
}

// removeSnapshot takes a snapshot that nobody is making out of the world. What
// needs it is named in the fault, and then it stays.
func (s *Service) removeSnapshot(ctx context.Context, sn store.Snapshot) error {
	defer s.busy(sn.SnapshotID)()
	moved, err := s.store.MoveSnapshot(ctx, sn.SnapshotID, sn.Generation, store.SnapshotDeleting, nil)
	if err != nil {
		return err
	}
	if err := s.removeFiles(ctx, moved); err != nil {
		if !errors.Is(err, backend.ErrStateInUse) {
			return err // it stays in deleting, and is tried again
		}
		if _, merr := s.store.MoveSnapshot(ctx, moved.SnapshotID, moved.Generation, store.SnapshotReady, nil); merr != nil {
			err = errors.Join(err, merr)
		}
		return s.inUse(ctx, sn, err)
	}
	err = s.store.EndSnapshot(ctx, moved.SnapshotID, moved.Generation)
	if errors.Is(err, store.ErrConflict) {
		return nil // another process took the same removal over, and finds nothing left
	}
	return err
}

// removeFiles removes a snapshot's directory, but for a disk that others need.
func (s *Service) removeFiles(ctx context.Context, sn store.Snapshot) error {
	sel, err := s.backends.ByName(sn.Backend)
	if err != nil {
		return err
	}
	keeper, err := keeperOf(sel.Backend)
	if err != nil {
		return err
	}
	if err := keeper.RemoveState(ctx, stateDir(sn.Dir)); err != nil {
		return err
	}
	return sweepDir(sn.Dir)
}

// sweepDir removes what is ours of a snapshot's directory, and the directory
// once the backend has left it.
func sweepDir(dir string) error {
	if err := os.RemoveAll(syncDir(dir)); err != nil {
		return err
	}
	if _, err := os.Lstat(stateDir(dir)); err == nil {
		return nil
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// inUse names the users of a state by their ids.
func (s *Service) inUse(ctx context.Context, sn store.Snapshot, err error) error {
	var u *backend.InUseError
	if !errors.As(err, &u) {
		return err
	}
	instances, states := []string{}, []string{}
	f := fault.Wrap(store.ErrSnapshotInUse, fault.InvalidArgument, "snapshot %s cannot be deleted: others need it", sn.SnapshotID).
		Because("an instance or a snapshot uses its memory or disk")
	for _, dir := range u.Users {
		if id := filepath.Base(filepath.Dir(dir)); filepath.Dir(filepath.Dir(dir)) == s.snapDir && snapshotName.MatchString(id) {
			states = append(states, id)
			f.Next("delete_snapshot %s first", id)
			continue
		}
		name := filepath.Base(dir)
		if l, lerr := s.store.LeaseByBackendName(ctx, name); lerr == nil {
			name = l.InstanceID
		}
		instances = append(instances, name)
		f.Next("destroy_instance %s first", name)
	}
	return f.With("snapshot_id", sn.SnapshotID).With("instances", instances).With("snapshots", states)
}

var snapshotName = regexp.MustCompile(`^snap_[0-9a-f]{8}$`)

// discard removes a snapshot that did not come to be, or that nobody wants any
// more; what fails is tried again by reconciliation.
func (s *Service) discard(ctx context.Context, sn store.Snapshot) {
	work, cancel := detached(ctx, time.Minute)
	defer cancel()
	now, err := s.store.Snapshot(work, sn.SnapshotID)
	if err == nil {
		err = s.removeSnapshot(work, now)
	}
	if err != nil && !fault.Is(err, fault.SnapshotNotFound) {
		s.log.Warn("unwanted snapshot not removed yet", "snapshot", sn.SnapshotID, "error", err)
	}
}

// releaseFork removes the state of a fork with its last child. Anything else
// stays.
func (s *Service) releaseFork(ctx context.Context, id string) {
	if id == "" {
		return
	}
	work, cancel := detached(ctx, time.Minute)
	defer cancel()
	sn, err := s.store.Snapshot(work, id)
	if err == nil && sn.Kind == store.SnapshotFork && sn.Status == store.SnapshotReady {
		err = s.removeSnapshot(work, sn)
	}
	if err != nil && !errors.Is(err, store.ErrSnapshotInUse) && !errors.Is(err, store.ErrConflict) && !fault.Is(err, fault.SnapshotNotFound) {
		s.log.Warn("state of a fork not removed yet", "snapshot", id, "error", err)
	}
}

// stillSaving reports whether the supervisor of a snapshot's source writes a
// state: it finishes that also when the server that asked for it has died.
func (s *Service) stillSaving(ctx context.Context, sn store.Snapshot) bool {
	l, err := s.store.Lease(ctx, sn.InstanceID)
	if err != nil || l.Status.Terminal() {
		return false
	}
	c, err := supervisor.Dial(ctx, s.runDir, l.BackendInstanceName)
	if err != nil {
		return !errors.Is(err, supervisor.ErrNotRunning) && !errors.Is(err, supervisor.ErrEnded)
	}
	defer c.Close()
	st, err := c.Status(ctx)
	return err != nil || st.Stage == supervisor.StageSaving
}

// waitSaved returns when the supervisor of a snapshot's source writes no state
// any more, or, with a fault, after saveTimeout or with ctx.
func (s *Service) waitSaved(ctx context.Context, sn store.Snapshot) error {
	ctx, cancel := context.WithTimeoutCause(ctx, saveTimeout, fault.New(fault.RuntimeNotReady, "the state of %s is still being written", sn.InstanceID).
		Because("an earlier call's save goes on in its supervisor").
		Next("repeat the call in a while"))
	defer cancel()
	for sn.Status == store.SnapshotCreating && s.stillSaving(ctx, sn) {
		report(ctx, Progress{Stage: "waiting", Message: "an earlier call's save of " + sn.InstanceID + " is still being written"})
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond): // nothing announces it to others than its caller
		}
	}
	return nil
}

// snapshotAtWork reports whether the process that last moved sn is still busy
// with it.
func (s *Service) snapshotAtWork(sn store.Snapshot) bool {
	if sn.Holder == s.store.Owner() {
		return s.isBusy(sn.SnapshotID) || sn.Status == store.SnapshotCreating && s.admitting.Load() > 0
	}
	return s.store.Alive(sn.Holder)
}

// reconcileSnapshots removes half-made snapshots, forks without children, rows
// without files and files without rows.
func (s *Service) reconcileSnapshots(ctx context.Context, res *GCResult) {
	all, err := s.store.Snapshots(ctx, store.SnapshotFilter{})
	if err != nil {
		res.failed(GCAction{Action: "list", Name: "snapshots", Reason: "the snapshots cannot be listed"}, err)
		return
	}
	children, err := s.children(ctx)
	if err != nil {
		res.failed(GCAction{Action: "list", Name: "snapshots", Reason: "the snapshots' children cannot be listed"}, err)
		return
	}
	res.SnapshotsChecked = len(all)
	for _, sn := range all {
		reason := s.unwanted(ctx, sn, children)
		if reason == "" {
			res.SnapshotBytes += sn.Bytes()
			continue
		}
		a := GCAction{Action: "removed_snapshot", InstanceID: sn.InstanceID, Name: sn.SnapshotID, Reason: reason}
		work, cancel := detached(ctx, 2*time.Minute)
		err := s.removeSnapshot(work, sn)
		cancel()
		switch {
		case err == nil:
			res.did(a)
		case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrSnapshotInUse), fault.Is(err, fault.SnapshotNotFound):
			// Somebody else was faster, or began in it just now.
		default:
			res.failed(a, err)
		}
	}
	s.reconcileSnapshotDirs(ctx, res)
}

// unwanted says why a snapshot is to be removed, "" if it is not.
func (s *Service) unwanted(ctx context.Context, sn store.Snapshot, children map[string][]string) string {
	switch sn.Status {
	case store.SnapshotCreating:
		if !s.snapshotAtWork(sn) && !s.stillSaving(ctx, sn) {
			return "the process that was making it ended"
		}
	case store.SnapshotDeleting:
		if !s.snapshotAtWork(sn) {
			return "its removal was not finished"
		}
	case store.SnapshotReady:
		if len(children[sn.SnapshotID]) > 0 || s.isBusy(sn.SnapshotID) {
			return ""
		}
		if sn.Kind == store.SnapshotFork {
			return "it was kept for children, and none is left"
		}
		if _, err := os.Lstat(stateDir(sn.Dir)); errors.Is(err, fs.ErrNotExist) {
			return "its files are gone"
		}
	}
	return ""
}

// reconcileSnapshotDirs removes directories that no row stands for, and what
// was left of others for the sake of disks that are gone by now.
func (s *Service) reconcileSnapshotDirs(ctx context.Context, res *GCResult) {
	entries, err := os.ReadDir(s.snapDir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			res.failed(GCAction{Action: "list", Name: s.snapDir, Reason: "the snapshots' files cannot be listed"}, err)
		}
		return
	}
	for _, e := range entries {
		if !e.IsDir() || !snapshotName.MatchString(e.Name()) {
			continue
		}
		if _, err := s.store.Snapshot(ctx, e.Name()); !fault.Is(err, fault.SnapshotNotFound) {
			continue
		}
		dir := s.snapshotDir(e.Name())
		a := GCAction{Action: "removed_files", Name: dir, Reason: "no snapshot stands for them"}
		var errs []error
		for _, b := range s.backends.All() {
			if k, err := keeperOf(b); err == nil {
				errs = append(errs, k.RemoveState(ctx, stateDir(dir)))
			}
		}
		if err := errors.Join(append(errs, sweepDir(dir))...); err != nil {
			if !errors.Is(err, backend.ErrStateInUse) {
				res.failed(a, err)
			}
			continue
		}
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			res.did(a)
		}
	}
}
