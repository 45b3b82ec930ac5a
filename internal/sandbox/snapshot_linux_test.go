package sandbox

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

func count(n int) *int { return &n }

// onlySource fails unless the source alone is left, with nothing of snapshots.
func (l *lab) onlySource(id string) {
	l.t.Helper()
	if got := l.active(); !slices.Equal(got, []string{id}) {
		l.t.Errorf("instances left: %v, want %s alone", got, id)
	}
	if got := l.rows(); len(got) > 0 {
		l.t.Errorf("snapshots left: %v", got)
	}
	if _, _, err := l.s.live(l.context(), id); err != nil {
		l.t.Errorf("the source: %v", err)
	}
}

// TestFork: children know where they come from and what the guest already has,
// and the state goes with the last of them.
func TestFork(t *testing.T) {
	l := newLab(t)
	src := l.create()
	remote, docker, yes := "/workspace", "sudo -n docker", true
	lease, err := l.s.store.Update(t.Context(), src.InstanceID, store.Patch{RemotePath: &remote, DockerCommand: &docker, RuntimeReady: &yes})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.s.store.InsertTask(t.Context(), store.NewTask{InstanceID: src.InstanceID, Kind: store.TaskBackground, Command: "make"}); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(l.s.manifestDir(lease), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(l.s.manifestDir(lease), "aa.manifest"), []byte("m"), 0o600); err != nil {
		t.Fatal(err)
	}
	var seen atomic.Int64
	r, err := l.s.ForkInstance(WithProgress(l.context(), func(Progress) { seen.Add(1) }), ForkInstanceRequest{InstanceID: src.InstanceID, Count: count(3)})
	if err != nil {
		t.Fatal(err)
	}
	if r.Status != "ok" || r.Created != 3 || r.Failed != 0 || len(r.Children) != 3 || r.PauseMS <= 0 || r.RunningTasks != 1 ||
		len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "1 task(s)") || seen.Load() == 0 {
		t.Errorf("%+v", r)
	}
	for _, c := range r.Children {
		in := c.Instance
		if in == nil || in.Status != "running" || in.StartKind != startClone || in.WorkspaceRoot != src.WorkspaceRoot ||
			in.ParentInstance != src.InstanceID || in.ParentSnapshot != r.SnapshotID || in.TimingsMS["boot_total"] < 0 {
			t.Fatalf("%+v", c)
		}
		cl, _, err := l.s.live(l.context(), in.InstanceID)
		if err != nil || cl.RemotePath != remote || cl.DockerCommand != docker || !cl.RuntimeReady || string(cl.Config) != string(lease.Config) {
			t.Errorf("%+v %v", cl, err)
		}
		if b, err := os.ReadFile(filepath.Join(l.s.manifestDir(cl), "aa.manifest")); err != nil || string(b) != "m" {
			t.Errorf("the sync manifest of %s: %q %v", in.InstanceID, b, err)
		}
	}
	list, err := l.s.ListInstances(l.context(), ListInstancesRequest{})
	if err != nil || len(list.Instances) != 4 || list.SnapshotCount != 1 {
		t.Fatalf("%+v %v", list, err)
	}
	snaps, err := l.s.ListSnapshots(l.context(), ListSnapshotsRequest{InstanceID: src.InstanceID})
	if err != nil || len(snaps.Snapshots) != 1 || snaps.Snapshots[0].Kind != "fork" || len(snaps.Snapshots[0].Children) != 3 {
		t.Fatalf("%+v %v", snaps, err)
	}
	// A fork of a child has the same lineage one step further.
	grand, err := l.s.ForkInstance(l.context(), ForkInstanceRequest{InstanceID: r.Children[0].InstanceID})
	if err != nil || grand.Created != 1 || grand.Children[0].Instance.ParentInstance != r.Children[0].InstanceID {
		t.Fatalf("%+v %v", grand, err)
	}
	_, err = l.s.DeleteSnapshot(l.context(), DeleteSnapshotRequest{SnapshotID: r.SnapshotID})
	f := wantCode(t, err, fault.InvalidArgument)
	if ids, ok := f.Details["instances"].([]string); !ok || len(ids) != 3 {
		t.Errorf("details %+v", f.Details)
	}
	l.gc()
	l.destroy(grand.Children[0].InstanceID)
	for _, c := range r.Children {
		if _, err := l.s.store.Snapshot(t.Context(), r.SnapshotID); err != nil {
			t.Errorf("the state went before the last child: %v", err)
		}
		l.destroy(c.InstanceID)
	}
	if rows, err := l.s.store.Snapshots(t.Context(), store.SnapshotFilter{}); err != nil || len(rows) != 0 {
		t.Errorf("rows after the last child: %+v %v", rows, err)
	}
	l.empty()
}

// TestForkRefused: what is refused leaves no trace, and the source goes on.
func TestForkRefused(t *testing.T) {
	l := newLab(t, "MAX_INSTANCES=3")
	src := l.create()
	for _, c := range []struct {
		r    ForkInstanceRequest
		code fault.Code
	}{
		{ForkInstanceRequest{InstanceID: src.InstanceID, Count: count(3)}, fault.InstanceLimitExceeded},
		{ForkInstanceRequest{InstanceID: src.InstanceID, Count: count(0)}, fault.InvalidArgument},
		{ForkInstanceRequest{InstanceID: src.InstanceID, Count: count(9)}, fault.InvalidArgument},
		{ForkInstanceRequest{InstanceID: src.InstanceID, TTLMinutes: new(float64)}, fault.TTLInvalid},
		{ForkInstanceRequest{InstanceID: "inst_ffffffff"}, fault.InstanceNotFound},
	} {
		_, err := l.s.ForkInstance(l.context(), c.r)
		wantCode(t, err, c.code)
	}
	l.onlySource(src.InstanceID)
	if all, err := l.s.store.Leases(t.Context(), store.LeaseFilter{IncludeEnded: true}); err != nil || len(all) != 1 {
		t.Errorf("leases were made: %+v %v", all, err)
	}
	full := l.open(l.conf())
	full.settings.SnapshotCap = 1 << 20
	_, err := full.ForkInstance(l.context(), ForkInstanceRequest{InstanceID: src.InstanceID})
	wantCode(t, err, fault.InsufficientDisk)
	plain := l.conf()
	plain.Plain = true
	_, err = l.open(plain).ForkInstance(l.context(), ForkInstanceRequest{InstanceID: src.InstanceID})
	wantCode(t, err, fault.UnsupportedByBackend)
	_, err = l.open(plain).SnapshotInstance(l.context(), SnapshotInstanceRequest{InstanceID: src.InstanceID})
	wantCode(t, err, fault.UnsupportedByBackend)
	l.onlySource(src.InstanceID)
	l.destroy(src.InstanceID)
	_, err = l.s.ForkInstance(l.context(), ForkInstanceRequest{InstanceID: src.InstanceID})
	wantCode(t, err, fault.InstanceTerminal)
	_, err = l.s.SnapshotInstance(l.context(), SnapshotInstanceRequest{InstanceID: src.InstanceID})
	wantCode(t, err, fault.InstanceTerminal)
}

// TestForkInPart: each child has its own fate, and the result says it plainly.
func TestForkInPart(t *testing.T) {
	l := newLab(t)
	src := l.create()
	l.token("fail-start-1")
	r, err := l.s.ForkInstance(l.context(), ForkInstanceRequest{InstanceID: src.InstanceID, Count: count(3)})
	if err != nil || r.Status != "partial" || r.Created != 2 || r.Failed != 1 || len(r.Children) != 3 || len(r.Warnings) != 1 {
		t.Fatalf("%+v %v", r, err)
	}
	for _, c := range r.Children {
		if (c.Instance == nil) == (c.Error == nil) {
			t.Fatalf("%+v", c)
		}
		if c.Error != nil {
			if !strings.Contains(c.Error.Details["probable_cause"].(string), "lets this start fail") || c.Error.Details["next_steps"] == nil {
				t.Errorf("%+v", c.Error)
			}
			continue
		}
		l.destroy(c.InstanceID)
	}
	if rows, err := l.s.store.Snapshots(t.Context(), store.SnapshotFilter{}); err != nil || len(rows) != 0 {
		t.Errorf("rows: %+v %v", rows, err)
	}
	l.token("fail-start-1")
	l.token("fail-start-2")
	_, err = l.s.ForkInstance(l.context(), ForkInstanceRequest{InstanceID: src.InstanceID, Count: count(2)})
	if f := fault.From(err); err == nil || !strings.Contains(f.Message, "none of the 2 children") || f.Details["children"] == nil {
		t.Errorf("%v", err)
	}
	l.token("fail-save")
	_, err = l.s.ForkInstance(l.context(), ForkInstanceRequest{InstanceID: src.InstanceID, Count: count(2), RequestID: "again"})
	if err == nil || !strings.Contains(err.Error(), "lets this save fail") {
		t.Errorf("%v", err)
	}
	if err := os.Remove(filepath.Join(l.conf().Faults, "fail-save")); err != nil {
		t.Fatal(err)
	}
	if got := l.active(); !slices.Equal(got, []string{src.InstanceID}) {
		t.Errorf("left: %v", got)
	}
	// A failure that changed nothing may be tried again under the same id, and a
	// success is told again.
	var ids [2]string
	for i := range ids {
		r, err := l.s.ForkInstance(l.context(), ForkInstanceRequest{InstanceID: src.InstanceID, Count: count(2), RequestID: "again"})
		if err != nil || r.Created != 2 {
			t.Fatalf("%+v %v", r, err)
		}
		ids[i] = r.SnapshotID
	}
	if ids[0] != ids[1] || len(l.active()) != 3 {
		t.Errorf("forked twice: %v %v", ids, l.active())
	}
}

// TestSnapshotAndRestore: a snapshot outlives its source, and is not deleted
// under an instance that began in it.
func TestSnapshotAndRestore(t *testing.T) {
	l := newLab(t)
	src := l.create()
	r, err := l.s.SnapshotInstance(l.context(), SnapshotInstanceRequest{InstanceID: src.InstanceID, Name: "before", Description: "the change", RequestID: "s"})
	if err != nil || r.Status != "ready" || r.Kind != "snapshot" || r.Name != "before" || r.InstanceID != src.InstanceID || r.PauseMS <= 0 {
		t.Fatalf("%+v %v", r, err)
	}
	again, err := l.s.SnapshotInstance(l.context(), SnapshotInstanceRequest{InstanceID: src.InstanceID, Name: "before", Description: "the change", RequestID: "s"})
	if err != nil || again.SnapshotID != r.SnapshotID {
		t.Fatalf("%+v %v", again, err)
	}
	_, err = l.s.SnapshotInstance(l.context(), SnapshotInstanceRequest{InstanceID: src.InstanceID, Name: strings.Repeat("n", 101)})
	wantCode(t, err, fault.InvalidArgument)
	l.destroy(src.InstanceID)
	l.gc()
	in, err := l.s.RestoreInstance(l.context(), RestoreInstanceRequest{SnapshotID: r.SnapshotID, RequestID: "r"})
	if err != nil || in.StartKind != startClone || in.ParentSnapshot != r.SnapshotID || in.ParentInstance != src.InstanceID || in.WorkspaceID != src.WorkspaceID {
		t.Fatalf("%+v %v", in, err)
	}
	if twice, err := l.s.RestoreInstance(l.context(), RestoreInstanceRequest{SnapshotID: r.SnapshotID, RequestID: "r"}); err != nil || twice.InstanceID != in.InstanceID {
		t.Fatalf("%+v %v", twice, err)
	}
	// A snapshot of the child needs the first one's disk only.
	second, err := l.s.SnapshotInstance(l.context(), SnapshotInstanceRequest{InstanceID: in.InstanceID})
	if err != nil || second.ParentSnapshot != r.SnapshotID {
		t.Fatalf("%+v %v", second, err)
	}
	_, err = l.s.DeleteSnapshot(l.context(), DeleteSnapshotRequest{SnapshotID: r.SnapshotID})
	f := wantCode(t, err, fault.InvalidArgument)
	if !strings.Contains(strings.Join(f.NextSteps, " "), in.InstanceID) {
		t.Errorf("%v", f.NextSteps)
	}
	l.destroy(in.InstanceID)
	d, err := l.s.DeleteSnapshot(l.context(), DeleteSnapshotRequest{SnapshotID: r.SnapshotID})
	if err != nil || d.Status != "deleted" || !d.DiskKept {
		t.Fatalf("%+v %v", d, err)
	}
	_, err = l.s.DeleteSnapshot(l.context(), DeleteSnapshotRequest{SnapshotID: r.SnapshotID})
	wantCode(t, err, fault.SnapshotNotFound)
	_, err = l.s.RestoreInstance(l.context(), RestoreInstanceRequest{SnapshotID: r.SnapshotID})
	wantCode(t, err, fault.SnapshotNotFound)
	late, err := l.s.RestoreInstance(l.context(), RestoreInstanceRequest{SnapshotID: second.SnapshotID})
	if err != nil {
		t.Fatal(err)
	}
	l.destroy(late.InstanceID)
	if d, err := l.s.DeleteSnapshot(l.context(), DeleteSnapshotRequest{SnapshotID: second.SnapshotID}); err != nil || d.DiskKept {
		t.Fatalf("%+v %v", d, err)
	}
	l.empty()
}

// TestUnfitSnapshot: one that cannot be used says why and makes nothing.
func TestUnfitSnapshot(t *testing.T) {
	l := newLab(t)
	src := l.create()
	r, err := l.s.SnapshotInstance(l.context(), SnapshotInstanceRequest{InstanceID: src.InstanceID})
	if err != nil {
		t.Fatal(err)
	}
	newer := l.conf()
	newer.Build = "newer"
	_, err = l.open(newer).RestoreInstance(l.context(), RestoreInstanceRequest{SnapshotID: r.SnapshotID})
	f := wantCode(t, err, fault.BackendCommandFailed)
	if !strings.Contains(strings.Join(f.NextSteps, " "), "delete_snapshot "+r.SnapshotID) {
		t.Errorf("%v", f.NextSteps)
	}
	if got := l.active(); !slices.Equal(got, []string{src.InstanceID}) {
		t.Errorf("left: %v", got)
	}
	if err := os.RemoveAll(stateDir(l.s.snapshotDir(r.SnapshotID))); err != nil {
		t.Fatal(err)
	}
	if g := l.gc(); len(g.Actions) != 1 || g.Actions[0].Action != "removed_snapshot" || g.SnapshotsChecked != 1 {
		t.Errorf("%+v", g)
	}
	l.onlySource(src.InstanceID)
}

// TestCancelledSave: the caller is answered at once, and what the supervisor
// finishes behind it is removed.
func TestCancelledSave(t *testing.T) {
	l := newLab(t)
	src := l.create()
	for _, fork := range []bool{false, true} {
		reached, release := l.hold("save")
		ctx, cancel := context.WithCancel(l.context())
		failed := make(chan error, 1)
		go func() {
			var err error
			if fork {
				_, err = l.s.ForkInstance(ctx, ForkInstanceRequest{InstanceID: src.InstanceID, Count: count(2)})
			} else {
				_, err = l.s.SnapshotInstance(ctx, SnapshotInstanceRequest{InstanceID: src.InstanceID})
			}
			failed <- err
		}()
		reached()
		l.gc() // what is being made is left alone
		cancel()
		wantCode(t, <-failed, fault.Cancelled)
		l.gc()
		release()
		l.s.wg.Wait() // the background work of the service
		l.onlySource(src.InstanceID)
	}
	l.empty()
}

// TestServerDiesInAFork: at whatever step, the next server leaves the source
// and nothing else, or what the request asked for.
func TestServerDiesInAFork(t *testing.T) {
	for _, c := range []struct {
		name, at string
	}{{"while the state is saved", "save"}, {"while a child starts", "start"}} {
		for _, repeat := range []bool{false, true} {
			name := c.name
			if repeat {
				name += ", and the request is repeated"
			}
			t.Run(name, func(t *testing.T) {
				l := newLab(t)
				src := l.create()
				reached, release := l.hold(c.at)
				r := ForkInstanceRequest{InstanceID: src.InstanceID, Count: count(3), RequestID: "f"}
				cmd, _ := l.server(labOrder{Fork: &r})
				reached()
				l.killServer(cmd)
				g := l.gc()
				if c.at == "save" {
					if rows, err := l.s.store.Snapshots(t.Context(), store.SnapshotFilter{}); err != nil || len(rows) != 1 {
						t.Errorf("a state that is still being written was removed: %+v %v", g, err)
					}
				}
				release()
				if !repeat {
					l.eventually(func() bool { l.gc(); return len(l.rows()) == 0 && len(l.active()) == 1 })
					l.onlySource(src.InstanceID)
					l.empty()
					return
				}
				out, err := l.s.ForkInstance(l.context(), r)
				if err != nil || out.Created+out.Failed != 3 || out.Created == 0 {
					t.Fatalf("%+v %v", out, err)
				}
				l.gc()
				if got := l.active(); len(got) != 1+out.Created {
					t.Errorf("%d created, active: %v", out.Created, got)
				}
				l.empty()
			})
		}
	}
}

// TestSupervisorDiesInASave: the source is lost, and nothing is taken for a
// snapshot.
func TestSupervisorDiesInASave(t *testing.T) {
	l := newLab(t)
	src := l.create()
	reached, _ := l.hold("save")
	failed := make(chan error, 1)
	go func() {
		_, err := l.s.SnapshotInstance(l.context(), SnapshotInstanceRequest{InstanceID: src.InstanceID})
		failed <- err
	}()
	reached()
	lease, err := l.s.store.Lease(t.Context(), src.InstanceID)
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.s.links.get(l.context(), lease.BackendInstanceName)
	if err != nil {
		t.Fatal(err)
	}
	p, err := os.FindProcess(c.Hello().PID)
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-failed, fault.InstanceLost)
	l.gc()
	if got := l.active(); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
	l.empty()
}

// TestStrayFiles: files without rows go, and what is not ours stays.
func TestStrayFiles(t *testing.T) {
	l := newLab(t)
	src := l.create()
	r, err := l.s.SnapshotInstance(l.context(), SnapshotInstanceRequest{InstanceID: src.InstanceID})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"snap_0123abcd/state", "snap_0123abce", "notes"} {
		if err := os.MkdirAll(filepath.Join(l.s.snapDir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	g := l.gc()
	if len(g.Actions) != 2 {
		t.Errorf("%+v", g.Actions)
	}
	entries, err := os.ReadDir(l.s.snapDir)
	if err != nil || len(entries) != 2 || entries[0].Name() != "notes" || entries[1].Name() != r.SnapshotID {
		t.Errorf("%v %v", entries, err)
	}
	// A restore and a delete at once: one wins.
	errs := make(chan error, 2)
	go func() {
		_, err := l.s.RestoreInstance(l.context(), RestoreInstanceRequest{SnapshotID: r.SnapshotID})
		errs <- err
	}()
	go func() {
		_, err := l.s.DeleteSnapshot(l.context(), DeleteSnapshotRequest{SnapshotID: r.SnapshotID})
		errs <- err
	}()
	a, b := <-errs, <-errs
	if (a == nil) == (b == nil) {
		t.Errorf("%v and %v", a, b)
	}
	if lost := errors.Join(a, b); !fault.Is(lost, fault.InvalidArgument) && !fault.Is(lost, fault.SnapshotNotFound) && !fault.Is(lost, fault.BackendCommandFailed) {
		t.Errorf("the loser was told %v", lost)
	}
}

// TestRestoreAfterACrash: a repeat makes anew what the dead server had only
// begun. What it had finished is TestARepeatFindsWhatRuns.
func TestRestoreAfterACrash(t *testing.T) {
	l := newLab(t)
	src := l.create()
	sn, err := l.s.SnapshotInstance(l.context(), SnapshotInstanceRequest{InstanceID: src.InstanceID})
	if err != nil {
		t.Fatal(err)
	}
	reached, release := l.hold("start")
	r := RestoreInstanceRequest{SnapshotID: sn.SnapshotID, RequestID: "r"}
	cmd, _ := l.server(labOrder{Rest: &r})
	reached()
	l.killServer(cmd)
	release()
	in, err := l.s.RestoreInstance(l.context(), r)
	if err != nil || len(l.active()) != 2 {
		t.Fatalf("%+v %v, active %v", in, err, l.active())
	}
	l.destroy(in.InstanceID)
	// And a snapshot whose server died while its state was being written.
	s := SnapshotInstanceRequest{InstanceID: src.InstanceID, RequestID: "s"}
	reached, release = l.hold("save")
	cmd, _ = l.server(labOrder{Snap: &s})
	reached()
	l.killServer(cmd)
	release()
	out, err := l.s.SnapshotInstance(l.context(), s)
	if err != nil || out.Status != "ready" {
		t.Fatalf("%+v %v", out, err)
	}
	list, err := l.s.ListSnapshots(l.context(), ListSnapshotsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Snapshots) != 2 || list.Snapshots[0].SnapshotID != out.SnapshotID {
		t.Errorf("%+v", list.Snapshots)
	}
}
