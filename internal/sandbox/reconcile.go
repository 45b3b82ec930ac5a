package sandbox

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
	"sandboxforge/internal/supervisor"
)

// Reconciliation compares rows and reality in both directions. Its rule is
// that a row is written before the thing it stands for is made, and the thing
// is removed before the row says so: hence a VM without an active row is
// nobody's, and a row without a VM has ended.

// overdue is how long after its deadline a VM may still be shutting down.
const overdue = time.Minute

// GCResult says what a reconciliation found and did.
type GCResult struct {
	InstancesChecked int        `json:"instances_checked"`
	VMsChecked       int        `json:"vms_checked"`
	SnapshotsChecked int        `json:"snapshots_checked"`
	SnapshotBytes    int64      `json:"snapshot_bytes"` // that those hold which stay
	Actions          []GCAction `json:"actions"`
	Failures         []GCAction `json:"failures"`
	ReclaimedBytes   int64      `json:"reclaimed_bytes"`

	mu sync.Mutex
}

// GCAction is one thing that was done, or could not be.
type GCAction struct {
	Action     string `json:"action"` // recorded_end, expired, deleted_vm, removed_files, told_deadline, removed_snapshot
	InstanceID string `json:"instance_id,omitempty"`
	Name       string `json:"name,omitempty"` // of the VM, or a path
	Reason     string `json:"reason"`
}

func (r *GCResult) did(a GCAction) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Actions = append(r.Actions, a)
}

func (r *GCResult) failed(a GCAction, err error) {
	a.Reason += ": " + err.Error()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Failures = append(r.Failures, a)
}

// GC reconciles leases and VMs and removes what is dead. It never touches a
// live instance, is idempotent, and one failure does not stop the rest. The
// error is that of the database only.
func (s *Service) GC(ctx context.Context) (*GCResult, error) {
	res := &GCResult{Actions: []GCAction{}, Failures: []GCAction{}}
	leases, err := s.store.Leases(ctx, store.LeaseFilter{})
	if err != nil {
		return nil, err
	}
	res.InstancesChecked = len(leases)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	for _, l := range leases {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			s.reconcileLease(ctx, l, res)
		})
	}
	wg.Wait()
	s.reconcileVMs(ctx, res)
	s.reconcileDirs(ctx, res)
	s.reconcileSnapshots(ctx, res)
	s.sweepTemplates(ctx, res)
	return res, ctx.Err()
}

// reconcileLease settles one active lease.
func (s *Service) reconcileLease(ctx context.Context, l store.Lease, res *GCResult) {
	switch l.Status {
	case store.Creating, store.Destroying, store.Expiring, store.Error:
		if s.atWork(l) {
			return
		}
		reason := l.EndReason
		if reason == "" {
			reason = "the process that was " + string(l.Status) + " it ended" // reasonAbandoned for creating
		}
		via := store.Destroying
		if l.Status == store.Expiring {
			via = store.Expiring
		}
		s.finish(ctx, l, via, reason, res)
	case store.Running:
		if l.Kind == store.KindTemplate && !s.atWork(l) {
			s.finish(ctx, l, store.Destroying, "the process that was making a template ended", res)
			return
		}
		if l.Kind == store.KindPool && s.reconcileReady(ctx, l, res) {
			return
		}
		s.reconcileRunning(ctx, l, res)
	}
}

// atWork reports whether the process that last moved l is still busy with it.
func (s *Service) atWork(l store.Lease) bool {
	if l.Holder == s.store.Owner() {
		return s.isBusy(l.InstanceID) || l.Status == store.Creating && s.admitting.Load() > 0
	}
	return s.store.Alive(l.Holder)
}

func (s *Service) reconcileRunning(ctx context.Context, l store.Lease, res *GCResult) {
	name := l.BackendInstanceName
	c, err := supervisor.Dial(ctx, s.runDir, name)
	if err == nil {
		defer c.Close()
		st, err := c.Status(ctx)
		if err != nil {
			res.failed(GCAction{Action: "status", InstanceID: l.InstanceID, Name: name, Reason: "the supervisor does not tell its state"}, err)
			return
		}
		if set, err := s.clockSet(ctx, l, st); err != nil {
			res.failed(GCAction{Action: "told_deadline", InstanceID: l.InstanceID, Name: name, Reason: "the host's clock was set"}, err)
			return
		} else if set {
			res.did(GCAction{Action: "told_deadline", InstanceID: l.InstanceID, Name: name, Reason: "the host's clock was set"})
			return
		}
		late := s.now().Sub(l.ExpiresAt)
		switch off := st.Deadline.Sub(l.ExpiresAt); {
		case late > overdue:
			s.finish(ctx, l, store.Expiring, supervisor.ReasonExpired, res)
		case late < 0 && (off > time.Second || off < -time.Second):
			if err := s.tellDeadline(ctx, l); err == nil {
				res.did(GCAction{Action: "told_deadline", InstanceID: l.InstanceID, Name: name, Reason: "the supervisor had missed an extension"})
			}
		}
		return
	}
	if ctx.Err() != nil {
		return
	}
	if !errors.Is(err, supervisor.ErrNotRunning) && !errors.Is(err, supervisor.ErrEnded) {
		// A supervisor of another version, or one that hangs: its own deadline
		// still holds, and past it the VM is taken away from it.
		if s.now().Sub(l.ExpiresAt) > overdue {
			s.finish(ctx, l, store.Expiring, supervisor.ReasonExpired, res)
			return
		}
		res.failed(GCAction{Action: "dial", InstanceID: l.InstanceID, Name: name, Reason: "the supervisor cannot be asked"}, err)
		return
	}
	if errors.Is(err, supervisor.ErrEnded) {
		return // it is on its way; its end is recorded when it is done
	}
	end, err := supervisor.ReadEnd(s.instanceDir(name))
	switch {
	case err == nil && end.Reason == supervisor.ReasonExpired:
		s.finish(ctx, l, store.Expiring, end.Reason, res)
	case err == nil:
		s.finish(ctx, l, store.Destroying, end.Reason, res)
	case !s.now().Before(l.ExpiresAt):
		s.finish(ctx, l, store.Expiring, supervisor.ReasonExpired, res)
	default:
		// A socket can be swept away under a supervisor that lives: it holds
		// its directory as long as it does, and puts the socket back.
		if on, err := s.staysRunning(ctx, s.instanceDir(name)); on || err != nil {
			res.failed(GCAction{Action: "dial", InstanceID: l.InstanceID, Name: name, Reason: "the supervisor lives, but nothing answers at its socket"},
				cmp.Or(err, supervisor.ErrNotRunning))
			return
		}
		s.finish(ctx, l, store.Destroying, "its supervisor died", res)
	}
}

// dying is how long a supervisor that was killed may take to let go of its
// directory: a process holds its locks until its memory is taken apart.
const dying = 3 * time.Second

// staysRunning says whether a supervisor holds its directory, and goes on to.
func (s *Service) staysRunning(ctx context.Context, dir string) (bool, error) {
	for until := time.Now().Add(dying); ; {
		on, err := supervisor.Running(dir)
		if !on || err != nil || time.Now().After(until) {
			return on, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return on, context.Cause(ctx)
		}
	}
}

// sweepTemplates removes what killed makers of templates left, and the files of
// former templates that no VM needs any more.
func (s *Service) sweepTemplates(ctx context.Context, res *GCResult) {
	st, err := s.keptTemplates()
	if err != nil {
		return // this platform has none
	}
	if err := st.Sweep(ctx); err != nil {
		res.failed(GCAction{Action: "list", Name: st.Dir, Reason: "the templates cannot be looked at"}, err)
	}
}

// finish tears an abandoned lease down.
func (s *Service) finish(ctx context.Context, l store.Lease, via store.Status, reason string, res *GCResult) {
	a := GCAction{Action: "recorded_end", InstanceID: l.InstanceID, Name: l.BackendInstanceName, Reason: reason}
	if via == store.Expiring {
		a.Action = "expired"
	}
	work, cancel := detached(ctx, 2*time.Minute)
	defer cancel()
	if _, err := s.teardown(work, l, via, reason, 0); err != nil {
		res.failed(a, err)
		return
	}
	res.did(a)
}

// reconcileVMs deletes VMs that no active lease stands for.
func (s *Service) reconcileVMs(ctx context.Context, res *GCResult) {
	for _, b := range s.backends.All() {
		infos, err := b.List(ctx)
		if err != nil {
			res.failed(GCAction{Action: "list", Name: b.Name(), Reason: "the backend cannot list its VMs"}, err)
			continue
		}
		for _, info := range infos {
			res.VMsChecked++
			if s.claimed(ctx, info.Name) {
				continue
			}
			a := GCAction{Action: "deleted_vm", Name: info.Name, Reason: "no lease stands for it"}
			if err := b.Delete(ctx, info.Name); err != nil {
				res.failed(a, err)
				continue
			}
			res.mu.Lock()
			res.ReclaimedBytes += info.DiskUsed
			res.mu.Unlock()
			res.did(a)
		}
	}
}

// reconcileDirs removes the files, and the supervisors, of instances that no
// active lease stands for.
func (s *Service) reconcileDirs(ctx context.Context, res *GCResult) {
	entries, err := os.ReadDir(s.instDir)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			res.failed(GCAction{Action: "list", Name: s.instDir, Reason: "the instances' files cannot be listed"}, err)
		}
		return
	}
	for _, e := range entries {
		if s.claimed(ctx, e.Name()) {
			continue
		}
		a := GCAction{Action: "removed_files", Name: filepath.Join(s.instDir, e.Name()), Reason: "no lease stands for them"}
		if err := supervisor.Remove(ctx, s.instanceDir(e.Name()), s.runDir, e.Name()); err != nil {
			res.failed(a, err)
			continue
		}
		res.did(a)
	}
}

// claimed reports whether an active lease stands for a VM's name, and also
// when that cannot be told: then nothing is removed.
func (s *Service) claimed(ctx context.Context, name string) bool {
	l, err := s.store.LeaseByBackendName(ctx, name)
	if err != nil {
		return !fault.Is(err, fault.InstanceNotFound)
	}
	return !l.Status.Terminal()
}

// StartSweeper reconciles at once and then at the configured interval until
// the service closes, and keeps the pool of ready VMs filled.
func (s *Service) StartSweeper() {
	s.keepPool()
	s.wg.Go(func() {
		tick := time.NewTicker(s.settings.SweeperInterval)
		defer tick.Stop()
		for {
			s.sweep()
			select {
			case <-s.root.Done():
				return
			case <-tick.C:
			}
		}
	})
}

// sweeping is the sweep that is under way, if there is one.
type sweeping struct {
	mu  sync.Mutex
	now *sweepRun
}

type sweepRun struct {
	done chan struct{}
	res  *GCResult
	err  error
}

// sweepOnce starts a sweep, or joins the one under way.
func (s *Service) sweepOnce() *sweepRun {
	s.sweeping.mu.Lock()
	defer s.sweeping.mu.Unlock()
	if r := s.sweeping.now; r != nil {
		return r
	}
	r := &sweepRun{done: make(chan struct{})}
	s.sweeping.now = r
	s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(s.root, 5*time.Minute)
		defer cancel()
		r.res, r.err = s.GC(ctx)
		s.sweeping.mu.Lock()
		s.sweeping.now = nil
		s.sweeping.mu.Unlock()
		close(r.done)
	})
	return r
}

func (s *Service) sweep() {
	r := s.sweepOnce()
	<-r.done
	ctx, cancel := context.WithTimeout(s.root, time.Minute)
	defer cancel()
	res, err := r.res, r.err
	if err != nil {
		if s.root.Err() == nil {
			s.log.Warn("reconciliation failed", "error", err)
		}
		return
	}
	for _, a := range res.Actions {
		s.log.Info("reconciled", "action", a.Action, "instance", a.InstanceID, "name", a.Name, "reason", a.Reason)
	}
	for _, a := range res.Failures {
		s.log.Warn("not reconciled", "action", a.Action, "instance", a.InstanceID, "name", a.Name, "reason", a.Reason)
	}
	if _, err := s.store.Prune(ctx); err != nil && s.root.Err() == nil {
		s.log.Warn("old records not pruned", "error", err)
	}
}

// busy counts the lives of leases that this process is working on, so that
// its own sweeper leaves them alone and takes up what failed.
func (s *Service) busy(id string) (done func()) {
	s.busyMu.Lock()
	defer s.busyMu.Unlock()
	if s.busyWith == nil {
		s.busyWith = map[string]int{}
	}
	s.busyWith[id]++
	return func() {
		s.busyMu.Lock()
		defer s.busyMu.Unlock()
		if s.busyWith[id]--; s.busyWith[id] <= 0 {
			delete(s.busyWith, id)
		}
	}
}

func (s *Service) isBusy(id string) bool {
	s.busyMu.Lock()
	defer s.busyMu.Unlock()
	return s.busyWith[id] > 0
}

// claimHome ties a state directory to one lease database: reconciliation
// deletes what no lease of its database stands for, so two databases must
// never share VMs. A database that is gone gives its claim up.
func claimHome(home, db string) error {
	mark := filepath.Join(home, "state", "lease-database")
	if b, err := os.ReadFile(mark); err == nil {
		if string(b) == db {
			return nil // and on a full disk too
		}
		other, err := os.Stat(string(b))
		ours, oursErr := os.Stat(db)
		switch {
		case err != nil: // gone
		case oursErr == nil && os.SameFile(other, ours): // under another name
		default:
			return fault.New(fault.InvalidArgument, "the VMs in %s belong to the lease database %s, not to %s", home, b, db).
				Because("LEASE_DB_PATH was changed while SANDBOXFORGE_HOME stayed the same").
				Next("set LEASE_DB_PATH back, or give this database a SANDBOXFORGE_HOME of its own").
				Next("or, if the old database is not wanted any more, destroy its instances and remove it")
		}
	}
	if err := os.MkdirAll(filepath.Dir(mark), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(mark), ".lease-database-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString(db)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), mark)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
