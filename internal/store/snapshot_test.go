package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandboxforge/internal/fault"
)

func snapshotOf(l Lease) NewSnapshot {
	return NewSnapshot{
		Kind: SnapshotKept, Name: "before", Description: "the migration", InstanceID: l.InstanceID, ReservedBytes: 2 << 30,
		Dir: func(id string) string { return filepath.Join("/snapshots", id) },
	}
}

func beginSnapshot(t *testing.T, s *Store, n NewSnapshot, children ...NewLease) (Snapshot, []Lease) {
	t.Helper()
	sn, all, err := s.BeginSnapshot(t.Context(), n, SnapshotLimits{}, func(Snapshot) []NewLease { return children }, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return sn, all
}

func moveSnapshot(t *testing.T, s *Store, sn Snapshot, to SnapshotStatus, saved *Saved) Snapshot {
	t.Helper()
	sn, err := s.MoveSnapshot(t.Context(), sn.SnapshotID, sn.Generation, to, saved)
	if err != nil {
		t.Fatal(err)
	}
	return sn
}

func readySnap(t *testing.T, s *Store, l Lease) Snapshot {
	t.Helper()
	sn, _ := beginSnapshot(t, s, snapshotOf(l))
	return moveSnapshot(t, s, sn, SnapshotReady, &Saved{Pause: 90 * time.Millisecond, MemoryBytes: 3, DiskBytes: 4, Accelerator: "tcg"})
}

// TestASnapshotRemembersItsSource: what an instance needs that begins there is
// in the row, also when the source is long gone.
func TestASnapshotRemembersItsSource(t *testing.T) {
	s, c := open(t)
	l := leaseIn(t, s, Running)
	docker, yes, remote := "sudo -n docker", true, "/workspace"
	l, err := s.Update(t.Context(), l.InstanceID, Patch{DockerCommand: &docker, RuntimeReady: &yes, RemotePath: &remote})
	if err != nil {
		t.Fatal(err)
	}
	startTask(t, s, l, TaskBackground)
	sn := readySnap(t, s, l)
	want := Snapshot{
		SnapshotID: sn.SnapshotID, Kind: SnapshotKept, Status: SnapshotReady, Generation: 2, Name: "before", Description: "the migration",
		InstanceID: l.InstanceID, Backend: "fake", Dir: "/snapshots/" + sn.SnapshotID, OwnerSession: "test", Holder: s.Owner(),
		CreatedAt: s.now(), ReservedBytes: 2 << 30, MemoryBytes: 3, DiskBytes: 4, Pause: 90 * time.Millisecond, RunningTasks: 1,
		WorkspaceRoot: "/w", WorkspaceID: "ws_0123456789ab", VMMemoryMiB: 2048, VMDiskBytes: 15 << 30, VMCPUs: 2, Accelerator: "tcg",
		RuntimeReady: true, DockerCommand: docker, RemotePath: remote, Config: []byte(`{"vm":{"cpus":2}}`), Spec: []byte(`{}`),
	}
	if d := cmp.Diff(want, sn); d != "" || !strings.HasPrefix(sn.SnapshotID, "snap_") {
		t.Error(d)
	}
	move(t, s, move(t, s, l, Move{To: Destroying}), Move{To: Destroyed})
	c.advance(2 * TerminalRetention)
	if _, err := s.Prune(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := s.ReadySnapshot(t.Context(), sn.SnapshotID); err != nil || cmp.Diff(want, got) != "" {
		t.Errorf("after the source was forgotten: %s %v", cmp.Diff(want, got), err)
	}
	if all, err := s.Snapshots(t.Context(), SnapshotFilter{InstanceID: "inst_ffffffff"}); err != nil || len(all) != 0 {
		t.Errorf("of another instance: %+v %v", all, err)
	}
}

func TestSnapshotsOfWhatDoesNotRun(t *testing.T) {
	s, _ := open(t)
	for _, c := range []struct {
		l    Lease
		code fault.Code
	}{
		{Lease{InstanceID: "inst_ffffffff"}, fault.InstanceNotFound},
		{leaseIn(t, s, Creating), fault.RuntimeNotReady},
		{leaseIn(t, s, Destroying), fault.InstanceTerminal},
		{leaseIn(t, s, Expired), fault.InstanceTerminal},
	} {
		_, _, err := s.BeginSnapshot(t.Context(), snapshotOf(c.l), SnapshotLimits{}, func(Snapshot) []NewLease { return []NewLease{newLease(s)} }, Limits{})
		wantCode(t, err, c.code)
	}
	if all, err := s.Snapshots(t.Context(), SnapshotFilter{}); err != nil || len(all) != 0 {
		t.Errorf("%+v %v", all, err)
	}
}

// TestSnapshotLife walks every pair of statuses.
func TestSnapshotLife(t *testing.T) {
	for from := range snapshotMoves {
		for to := range snapshotMoves {
			s, _ := open(t)
			sn, _ := beginSnapshot(t, s, snapshotOf(leaseIn(t, s, Running)))
			if from != SnapshotCreating {
				sn = moveSnapshot(t, s, sn, from, &Saved{})
			}
			want := false
			for _, ok := range snapshotMoves[from] {
				want = want || ok == to
			}
			got, err := s.MoveSnapshot(t.Context(), sn.SnapshotID, sn.Generation, to, &Saved{})
			if want != (err == nil) || err != nil && !errors.Is(err, ErrConflict) {
				t.Errorf("%s to %s: %v", from, to, err)
			}
			if err == nil && (got.Status != to || got.Generation != sn.Generation+1) {
				t.Errorf("%s to %s: %+v", from, to, got)
			}
			if _, err := s.MoveSnapshot(t.Context(), sn.SnapshotID, sn.Generation+7, to, nil); !errors.Is(err, ErrConflict) {
				t.Errorf("%s to %s with another generation: %v", from, to, err)
			}
		}
	}
	s, _ := open(t)
	_, err := s.MoveSnapshot(t.Context(), "snap_ffffffff", 1, SnapshotReady, nil)
	wantCode(t, err, fault.SnapshotNotFound)
	sn := readySnap(t, s, leaseIn(t, s, Running))
	if err := s.EndSnapshot(t.Context(), sn.SnapshotID, sn.Generation); !errors.Is(err, ErrConflict) {
		t.Errorf("a ready snapshot was forgotten: %v", err)
	}
	sn = moveSnapshot(t, s, sn, SnapshotDeleting, nil)
	for range 2 {
		if err := s.EndSnapshot(t.Context(), sn.SnapshotID, sn.Generation); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.Snapshot(t.Context(), sn.SnapshotID)
	wantCode(t, err, fault.SnapshotNotFound)
}

// TestASnapshotStaysForItsChildren: of a delete and a restore at once, one wins.
func TestASnapshotStaysForItsChildren(t *testing.T) {
	s, _ := open(t)
	l := leaseIn(t, s, Running)
	sn := readySnap(t, s, l)
	n := newLease(s)
	n.ParentSnapshot = sn.SnapshotID
	child, err := s.Admit(t.Context(), n, Limits{})
	if err != nil || child.ParentSnapshot != sn.SnapshotID || child.ParentInstance != l.InstanceID {
		t.Fatalf("%+v %v", child, err)
	}
	_, err = s.MoveSnapshot(t.Context(), sn.SnapshotID, sn.Generation, SnapshotDeleting, nil)
	f := wantCode(t, err, fault.InvalidArgument)
	if !errors.Is(err, ErrSnapshotInUse) || !strings.Contains(strings.Join(f.NextSteps, " "), child.InstanceID) {
		t.Errorf("%v: %v", err, f.NextSteps)
	}
	if all, err := s.Leases(t.Context(), LeaseFilter{ParentSnapshot: sn.SnapshotID}); err != nil || len(all) != 1 {
		t.Errorf("children: %+v %v", all, err)
	}
	move(t, s, move(t, s, child, Move{To: Destroying}), Move{To: Destroyed})
	moveSnapshot(t, s, sn, SnapshotDeleting, nil)
	_, err = s.Admit(t.Context(), n, Limits{})
	wantCode(t, err, fault.SnapshotNotFound)

	for range 20 {
		sn := readySnap(t, s, l)
		n := newLease(s)
		n.ParentSnapshot = sn.SnapshotID
		var wg sync.WaitGroup
		var deleted, admitted error
		wg.Go(func() { _, deleted = s.MoveSnapshot(t.Context(), sn.SnapshotID, sn.Generation, SnapshotDeleting, nil) })
		wg.Go(func() { _, admitted = s.Admit(t.Context(), n, Limits{}) })
		wg.Wait()
		if (deleted == nil) == (admitted == nil) {
			t.Fatalf("deleted: %v, admitted: %v", deleted, admitted)
		}
	}
}

// TestForksAreAdmittedTogether: all or nothing, and a refusal leaves no row.
func TestForksAreAdmittedTogether(t *testing.T) {
	s, _ := open(t)
	l := leaseIn(t, s, Running)
	n := snapshotOf(l)
	n.Kind = SnapshotFork
	r, _, err := s.BeginRequest(t.Context(), "fork_instance", "r1", "f")
	if err != nil {
		t.Fatal(err)
	}
	n.Request = &r
	three := func(Snapshot) []NewLease { return []NewLease{newLease(s), newLease(s), newLease(s)} }
	refusal := errors.New("no")
	seen := 0
	for name, lim := range map[string]Limits{
		"cap":    {MaxInstances: 3},
		"memory": {MemoryBudgetMiB: 4*2048 - 1},
		"decide": {Decide: func(u Usage) error {
			if seen = u.Instances; seen == 3 {
				return refusal
			}
			return nil
		}},
	} {
		_, _, err := s.BeginSnapshot(t.Context(), n, SnapshotLimits{}, three, lim)
		switch name {
		case "cap":
			f := wantCode(t, err, fault.InstanceLimitExceeded)
			if !strings.Contains(f.Message, "1 of 3") || !strings.Contains(f.Message, "3 more") {
				t.Errorf("message %q", f.Message)
			}
		case "memory":
			wantCode(t, err, fault.InsufficientHostResources)
		case "decide":
			if !errors.Is(err, refusal) {
				t.Errorf("decide: %v", err)
			}
		}
	}
	for _, lim := range []SnapshotLimits{{CapBytes: 1 << 30}, {FreeBytes: 1 << 30}} {
		_, _, err = s.BeginSnapshot(t.Context(), n, lim, three, Limits{})
		wantCode(t, err, fault.InsufficientDisk)
	}
	if u, err := s.Usage(t.Context()); err != nil || u.Instances != 1 {
		t.Fatalf("a refusal left leases: %+v %v", u, err)
	}
	if all, err := s.Snapshots(t.Context(), SnapshotFilter{}); err != nil || len(all) != 0 {
		t.Fatalf("a refusal left a snapshot: %+v %v", all, err)
	}
	sn, children, err := s.BeginSnapshot(t.Context(), n, SnapshotLimits{CapBytes: 2 << 30}, three, Limits{MaxInstances: 4})
	if err != nil || len(children) != 3 || sn.Kind != SnapshotFork || r.SnapshotID != sn.SnapshotID {
		t.Fatalf("%+v %+v %v", sn, children, err)
	}
	for _, c := range children {
		if c.Status != Creating || c.ParentSnapshot != sn.SnapshotID || c.ParentInstance != l.InstanceID || c.RequestID != "r1" {
			t.Errorf("%+v", c)
		}
	}
	if again, _, err := s.BeginRequest(t.Context(), "fork_instance", "r1", "f"); err != nil || again.SnapshotID != sn.SnapshotID {
		t.Errorf("the request does not know the snapshot: %+v %v", again, err)
	}
	// What failed is nobody's, although its children's leases still end.
	moveSnapshot(t, s, sn, SnapshotDeleting, nil)
}

// TestARequestKeepsASnapshotThatItHad: one that was ready stays known to the
// request when it is gone, one that never was does not.
func TestARequestKeepsASnapshotThatItHad(t *testing.T) {
	s, _ := open(t)
	l := leaseIn(t, s, Running)
	for _, ready := range []bool{false, true} {
		r, _, err := s.BeginRequest(t.Context(), "snapshot_instance", fmt.Sprint(ready), "f")
		if err != nil {
			t.Fatal(err)
		}
		n := snapshotOf(l)
		n.Request = &r
		sn, _ := beginSnapshot(t, s, n)
		want := ""
		if ready {
			sn, want = moveSnapshot(t, s, sn, SnapshotReady, &Saved{}), sn.SnapshotID
		}
		sn = moveSnapshot(t, s, sn, SnapshotDeleting, nil)
		if err := s.EndSnapshot(t.Context(), sn.SnapshotID, sn.Generation); err != nil {
			t.Fatal(err)
		}
		if now, o, err := s.BeginRequest(t.Context(), "snapshot_instance", fmt.Sprint(ready), "f"); err != nil || o != InProgress || now.SnapshotID != want {
			t.Errorf("ready %v: %v %+v %v", ready, o, now, err)
		}
	}
}

// TestTheLimitsOfSnapshots count what is being made with what it may take.
func TestTheLimitsOfSnapshots(t *testing.T) {
	s, _ := open(t)
	l := leaseIn(t, s, Running)
	lim := SnapshotLimits{CapBytes: 5 << 30}
	small, _ := beginSnapshot(t, s, snapshotOf(l))
	moveSnapshot(t, s, small, SnapshotReady, &Saved{MemoryBytes: 1 << 30, DiskBytes: 1})
	if _, _, err := s.BeginSnapshot(t.Context(), snapshotOf(l), lim, nil, Limits{}); err != nil {
		t.Fatal(err)
	}
	_, _, err := s.BeginSnapshot(t.Context(), snapshotOf(l), lim, nil, Limits{})
	f := wantCode(t, err, fault.InsufficientDisk)
	if f.Details["held_bytes"] != int64(3<<30+1) || !strings.Contains(strings.Join(f.NextSteps, " "), "delete_snapshot "+small.SnapshotID) {
		t.Errorf("%v %v", f.Details, f.NextSteps)
	}
	_, _, err = s.BeginSnapshot(t.Context(), snapshotOf(l), SnapshotLimits{FreeBytes: 4<<30 - 1}, nil, Limits{})
	f = wantCode(t, err, fault.InsufficientDisk)
	if f.Details["free_bytes"] != int64(2<<30-1) {
		t.Errorf("%v", f.Details)
	}
	beginSnapshot(t, s, snapshotOf(l))
}
