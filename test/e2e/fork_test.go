package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// sh runs a command as root and returns what it printed; it must succeed.
func (sv *server) sh(t testing.TB, instance, command string) string {
	t.Helper()
	var r sandbox.RunCommandResult
	sv.must(t, "run_command", obj{"instance_id": instance, "command": command, "user": "root"}, &r)
	if r.ExitCode != 0 {
		t.Fatalf("%s: %q: exit %d, %q %q", instance, command, r.ExitCode, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(r.Stdout)
}

func (sv *server) fork(t testing.TB, instance string, count int) *sandbox.ForkInstanceResult {
	t.Helper()
	var f sandbox.ForkInstanceResult
	began := time.Now()
	sv.must(t, "fork_instance", obj{"instance_id": instance, "count": count}, &f)
	t.Logf("fork of %d: %.2f s, pause %.1f ms, timings %v", count, time.Since(began).Seconds(), f.PauseMS, f.TimingsMS)
	if f.Status != "ok" || f.Created != count || len(f.Children) != count || f.PauseMS <= 0 {
		t.Fatalf("fork: %+v", f)
	}
	for _, c := range f.Children {
		t.Logf("child %s: %v", c.InstanceID, c.Instance.TimingsMS)
		if err := sv.logBoot(t.Name(), c.InstanceID); err != nil { // with its source's boot id
			t.Error(err)
		}
	}
	return &f
}

// counter starts a program that counts in its memory alone, beside a token that
// it made up, and shows both in a file.
func (sv *server) counter(t testing.TB, instance string) {
	t.Helper()
	var task sandbox.StartBackgroundTaskResult
	sv.must(t, "start_background_task", obj{"instance_id": instance, "command": `token=$(head -c8 /dev/urandom | od -An -tx1 | tr -d ' \n')
		i=0; while :; do i=$((i+1)); echo "$token $i" > /tmp/count.new; mv /tmp/count.new /tmp/count; sleep 0.02; done`}, &task)
	await(t, time.Minute, func() bool {
		var r sandbox.RunCommandResult
		sv.must(t, "run_command", obj{"instance_id": instance, "command": "cat /tmp/count"}, &r)
		return r.ExitCode == 0
	})
}

// count reads what the counter shows.
func (sv *server) count(t testing.TB, instance string) (token string, n int) {
	t.Helper()
	token, text, _ := strings.Cut(sv.sh(t, instance, "cat /tmp/count"), " ")
	n, err := strconv.Atoi(text)
	if err != nil || len(token) != 16 {
		t.Fatalf("counter of %s: %q %q", instance, token, text)
	}
	return token, n
}

// goesOn fails unless the counter that showed at least from goes on.
func (sv *server) goesOn(t testing.TB, instance, token string, from int) {
	t.Helper()
	got, n := sv.count(t, instance)
	if got != token || n < from {
		t.Errorf("%s counts %s %d; it should go on with %s from %d", instance, got, n, token, from)
	}
	await(t, 30*time.Second, func() bool {
		_, later := sv.count(t, instance)
		return later > n
	})
}

func destroyAll(t testing.TB, sv *server, ids ...string) {
	t.Helper()
	for _, id := range ids {
		sv.must(t, "destroy_instance", obj{"instance_id": id, "force": true}, nil)
	}
}

// nothingLeft fails unless no file of a VM or a snapshot is there.
func (s *state) nothingLeft(t testing.TB) {
	t.Helper()
	if _, err := s.cli("gc"); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{"vms", "instances", "snapshots"} {
		left, _ := filepath.Glob(filepath.Join(s.home, dir, "[a-z]*"))
		for _, f := range left {
			t.Errorf("left: %s", f)
		}
	}
	for _, p := range s.left() {
		t.Errorf("still running: %s", p)
	}
}

// TestForksGoOn: a program's memory and a file that was never synced go on in
// the source and in each child, and each is somebody else.
func TestForksGoOn(t *testing.T) { forksGoOn(t, newState(t)) }

// TestForksOfSentMemory: the same where QEMU's memory cannot be read, and QEMU
// sends it.
func TestForksOfSentMemory(t *testing.T) {
	st := newState(t)
	st.bin = t.TempDir()
	if err := buildBinaries(t.Context(), st.bin, "-ldflags", "-X sandboxforge/internal/backend/qemu.blindForTests=1"); err != nil {
		t.Fatal(err)
	}
	out, err := st.cli("doctor")
	if err != nil || !strings.Contains(string(out), "QEMU sends the memory") {
		t.Fatalf("doctor: %v\n%s", err, out)
	}
	forksGoOn(t, st)
}

func forksGoOn(t *testing.T, st *state) {
	sv := st.start(t)
	src := sv.create(t, minimal(st.workspace))
	if !src.Capabilities.Snapshots || !src.Capabilities.Clones {
		t.Fatalf("capabilities %+v", src.Capabilities)
	}
	sv.counter(t, src.InstanceID)
	sv.sh(t, src.InstanceID, "echo unsynced > /var/unsynced")
	token, before := sv.count(t, src.InstanceID)
	f := sv.fork(t, src.InstanceID, 3)
	if f.RunningTasks != 1 || len(f.Warnings) != 1 {
		t.Errorf("running tasks %d, warnings %q", f.RunningTasks, f.Warnings)
	}

	seen := map[string]string{}
	for _, id := range []string{src.InstanceID, f.Children[0].InstanceID, f.Children[1].InstanceID, f.Children[2].InstanceID} {
		sv.goesOn(t, id, token, before)
		if got := sv.sh(t, id, "cat /var/unsynced"); got != "unsynced" {
			t.Errorf("%s: the unsynced file has %q", id, got)
		}
		for what, v := range sv.identity(t, id) {
			if what == "time" {
				continue
			}
			if other, dup := seen[what+v]; dup {
				t.Errorf("%s and %s have the same %s: %s", other, id, what, v)
			}
			seen[what+v] = id
		}
		sv.sh(t, id, "echo "+id+" > /var/mine; sync")
	}
	for _, c := range f.Children {
		if got := sv.sh(t, c.InstanceID, "cat /var/mine"); got != c.InstanceID {
			t.Errorf("%s sees the file of %s", c.InstanceID, got)
		}
		var tasks sandbox.ListTasksResult
		sv.must(t, "list_tasks", obj{"instance_id": c.InstanceID}, &tasks)
		if len(tasks.Tasks) != 0 {
			t.Errorf("the source's task is one of the child's: %+v", tasks.Tasks)
		}
	}

	// A clone of a clone, and what must not be deleted.
	g := sv.fork(t, f.Children[0].InstanceID, 1)
	sv.goesOn(t, g.Children[0].InstanceID, token, before)
	e := sv.fails(t, fault.InvalidArgument, "delete_snapshot", obj{"snapshot_id": f.SnapshotID})
	if s := fmt.Sprint(e.Details["instances"]); !strings.Contains(s, f.Children[2].InstanceID) {
		t.Errorf("who is in the way: %s", s)
	}
	destroyAll(t, sv, src.InstanceID, f.Children[0].InstanceID)
	sv.goesOn(t, g.Children[0].InstanceID, token, before)
	destroyAll(t, sv, f.Children[1].InstanceID, f.Children[2].InstanceID)
	sv.goesOn(t, g.Children[0].InstanceID, token, before)
	var list sandbox.ListSnapshotsResult
	sv.must(t, "list_snapshots", obj{}, &list)
	if len(list.Snapshots) != 1 || list.Snapshots[0].SnapshotID != g.SnapshotID || list.Snapshots[0].Kind != "fork" {
		t.Errorf("snapshots: %+v", list.Snapshots)
	}
	destroyAll(t, sv, g.Children[0].InstanceID)
	st.nothingLeft(t)
}

// TestSyncInAFork: what was synced into the source need not be sent again to a
// child, and what changed there is not taken for the host's.
func TestSyncInAFork(t *testing.T) {
	st := newState(t)
	sv := st.start(t)
	for i := range 20 {
		if err := os.WriteFile(filepath.Join(st.workspace, fmt.Sprintf("f%02d", i)), fmt.Appendf(nil, "content %d\n", i), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	src := sv.create(t, minimal(st.workspace))
	to := func(id string) obj { return obj{"instance_id": id, "remote_path": "/tmp/ws"} }
	var up sandbox.SyncToInstanceResult
	sv.must(t, "sync_workspace_to_instance", to(src.InstanceID), &up)
	if up.FilesSent != 20 {
		t.Fatalf("%+v", up)
	}
	f := sv.fork(t, src.InstanceID, 2)
	a, b := f.Children[0].InstanceID, f.Children[1].InstanceID
	sv.must(t, "sync_workspace_to_instance", to(a), &up)
	if up.FilesSent != 0 || up.FilesUnchanged != 20 || len(up.Conflicts) != 0 {
		t.Errorf("a first sync into a child: %+v", up)
	}
	sv.sh(t, b, "cd /tmp/ws && echo guest > f01 && echo guest > f02 && rm f03")
	if err := os.WriteFile(filepath.Join(st.workspace, "f02"), []byte("host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	sv.must(t, "sync_workspace_to_instance", to(b), &up)
	if len(up.Conflicts) != 1 || up.Conflicts[0].Path != "f02" || len(up.GuestChanged) != 1 || up.GuestChanged[0] != "f01" {
		t.Errorf("a sync into a child that changed: %+v", up)
	}
	var down sandbox.SyncFromInstanceResult
	sv.must(t, "sync_instance_to_workspace", to(b), &down)
	if got, err := os.ReadFile(filepath.Join(st.workspace, "f02")); err != nil || string(got) != "host\n" || fmt.Sprint(down.Updated) != "[f01]" {
		t.Errorf("f02 is %q, %v; %+v", got, err, down)
	}
	destroyAll(t, sv, a, b, src.InstanceID)
	st.nothingLeft(t)
}

// TestForkWithDocker: a running Docker goes on in the child, where the workspace
// is ready without a wait.
func TestForkWithDocker(t *testing.T) {
	sv, src := shared(t)
	// Others write to this workspace.
	sv.must(t, "sync_workspace_to_instance", obj{"instance_id": src.InstanceID}, nil)
	f := sv.fork(t, src.InstanceID, 1)
	child := f.Children[0].InstanceID
	defer destroyAll(t, sv, child)
	var list sandbox.ListInstancesResult
	sv.must(t, "list_instances", obj{}, &list)
	for _, i := range list.Instances {
		if i.InstanceID == child && (!i.RuntimeReady || i.DockerCommand == nil || i.ParentInstance != src.InstanceID) {
			t.Errorf("%+v", i)
		}
	}
	if got, want := sv.sh(t, child, "docker network ls -q | sort"), sv.sh(t, src.InstanceID, "docker network ls -q | sort"); got != want || got == "" {
		t.Errorf("networks %q, the source has %q", got, want)
	}
	var p sandbox.PrepareWorkspaceResult
	sv.must(t, "prepare_workspace", obj{"instance_id": child, "wait_for_ready": true}, &p)
	if !p.RuntimeReady || p.Network.Status != "existing" || p.Sync.FilesSent != 0 || p.Sync.FilesUnchanged == 0 {
		t.Errorf("%+v, sync %+v", p, p.Sync)
	}
}

// TestSnapshotOutlivesItsSource, and is restored any number of times.
func TestSnapshotOutlivesItsSource(t *testing.T) {
	st := newState(t)
	sv := st.start(t)
	src := sv.create(t, minimal(st.workspace))
	sv.counter(t, src.InstanceID)
	token, before := sv.count(t, src.InstanceID)
	var snap sandbox.SnapshotInstanceResult
	sv.must(t, "snapshot_instance", obj{"instance_id": src.InstanceID, "name": "counting"}, &snap)
	t.Logf("snapshot: pause %.1f ms, %d bytes of memory, %d of disk, timings %v", snap.PauseMS, snap.MemoryBytes, snap.DiskBytes, snap.TimingsMS)
	sv.goesOn(t, src.InstanceID, token, before)
	sv.sh(t, src.InstanceID, "echo later > /var/later; sync")
	_, gone := sv.count(t, src.InstanceID)
	destroyAll(t, sv, src.InstanceID)

	var first, second sandbox.CreateInstanceResult
	sv.must(t, "restore_instance", obj{"snapshot_id": snap.SnapshotID}, &first)
	t.Logf("restore: %v", first.TimingsMS)
	sv.goesOn(t, first.InstanceID, token, before)
	if out := sv.sh(t, first.InstanceID, "ls /var"); strings.Contains(out, "later") {
		t.Error("the snapshot has a file that was written after it")
	}
	sv.sh(t, first.InstanceID, "echo x > /var/first; sync")
	next := st.start(t) // another server knows it too
	next.must(t, "restore_instance", obj{"snapshot_id": snap.SnapshotID}, &second)
	if _, n := next.count(t, second.InstanceID); n >= gone {
		t.Logf("the counter is at %d already, the source was at %d", n, gone)
	}
	if out := next.sh(t, second.InstanceID, "ls /var"); strings.Contains(out, "first") {
		t.Error("one child sees another's file")
	}
	if first.StartKind != "clone" || first.ParentInstance != src.InstanceID || second.ParentSnapshot != snap.SnapshotID {
		t.Errorf("%+v", first)
	}
	// A snapshot of a child builds on the first one's disk.
	var child sandbox.SnapshotInstanceResult
	sv.must(t, "snapshot_instance", obj{"instance_id": first.InstanceID}, &child)
	sv.fails(t, fault.InvalidArgument, "delete_snapshot", obj{"snapshot_id": snap.SnapshotID})
	destroyAll(t, sv, first.InstanceID, second.InstanceID)
	var del sandbox.DeleteSnapshotResult
	sv.must(t, "delete_snapshot", obj{"snapshot_id": snap.SnapshotID}, &del)
	if !del.DiskKept {
		t.Errorf("%+v", del)
	}
	sv.fails(t, fault.SnapshotNotFound, "restore_instance", obj{"snapshot_id": snap.SnapshotID})
	var third sandbox.CreateInstanceResult
	sv.must(t, "restore_instance", obj{"snapshot_id": child.SnapshotID}, &third)
	if out := sv.sh(t, third.InstanceID, "cat /var/first"); out != "x" {
		t.Errorf("restored from the child's snapshot: %q", out)
	}
	destroyAll(t, sv, third.InstanceID)
	if out, err := st.cli("snapshot", "rm", child.SnapshotID[:8]); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	st.nothingLeft(t)
}

// TestForkWhileWriting: a command that writes at full speed goes on in source
// and child, and the child's file system is whole.
func TestForkWhileWriting(t *testing.T) {
	fsck, err := exec.LookPath("e2fsck")
	if err != nil {
		t.Fatal("the test needs e2fsck")
	}
	st := newState(t)
	sv := st.start(t)
	src := sv.create(t, minimal(st.workspace))
	sv.must(t, "start_background_task", obj{"instance_id": src.InstanceID, "command": `mkdir -p /tmp/w && cd /tmp/w; echo $$ > pid; i=0
		while :; do i=$((i+1)); d=d$((i%6)); mkdir -p $d; head -c 50000 /dev/zero | tr '\0' "$((i%10))" > $d/f$((i%5)); [ $((i%9)) = 0 ] && rm -rf d$((i*7%6)); echo $i > n.new; mv n.new n; done`}, nil)
	n := func(id string) int {
		v, _ := strconv.Atoi(sv.sh(t, id, "cat /tmp/w/n 2>/dev/null || echo 0"))
		return v
	}
	await(t, time.Minute, func() bool { return n(src.InstanceID) > 50 })
	for round := range 2 {
		f := sv.fork(t, src.InstanceID, 1)
		child := f.Children[0].InstanceID
		for _, id := range []string{src.InstanceID, child} {
			at := n(id)
			await(t, 30*time.Second, func() bool { return n(id) > at })
		}
		// What is read back from the disk has no byte of another file.
		if out := sv.sh(t, child, `kill -KILL $(cat /tmp/w/pid); while pgrep -x head > /dev/null; do sleep 0.05; done
			sync; echo 3 > /proc/sys/vm/drop_caches; cd /tmp/w
			for f in d*/f*; do [ ! -s $f ] || [ $(tr -d "$(head -c1 $f)" < $f | wc -c) = 0 ] || echo torn $f; done`); out != "" {
			t.Errorf("in the child: %s", out)
		}
		if out := sv.sh(t, child, "dmesg | grep -iE 'ext4.*(error|warning)' || true"); out != "" {
			t.Errorf("the child's kernel: %s", out)
		}
		// Emergency remount: everything is written, and the file system clean.
		sv.sh(t, child, "sync; echo u > /proc/sysrq-trigger; while grep -q ' / ext4 rw' /proc/mounts; do sleep 0.05; done")
		raw := filepath.Join(t.TempDir(), fmt.Sprintf("disk-%d.raw", round))
		disk := st.disk(t, child)
		if out, err := exec.Command("qemu-img", "convert", "-U", "-f", "qcow2", "-O", "raw", disk, raw).CombinedOutput(); err != nil {
			t.Fatalf("qemu-img: %v: %s", err, out)
		}
		if out, err := exec.Command(fsck, "-fn", raw).CombinedOutput(); err != nil {
			t.Errorf("e2fsck of %s: %v\n%s", child, err, out)
		} else {
			t.Logf("e2fsck: %s", lastBytes(string(out), 200))
		}
		os.Remove(raw)
		destroyAll(t, sv, child)
	}
	destroyAll(t, sv, src.InstanceID)
	st.nothingLeft(t)
}

// disk is the file that a VM's disk is written to.
func (s *state) disk(t testing.TB, instance string) string {
	t.Helper()
	all, _ := filepath.Glob(filepath.Join(s.home, "vms", vmName(instance), "*.qcow2"))
	if len(all) != 1 {
		t.Fatalf("disks of %s: %v", instance, all)
	}
	return all[0]
}

// TestForkOverTheCap: what does not fit as a whole is not begun.
func TestForkOverTheCap(t *testing.T) {
	st := newState(t, "MAX_INSTANCES=3")
	sv := st.start(t)
	src := sv.create(t, minimal(st.workspace))
	e := sv.fails(t, fault.InstanceLimitExceeded, "fork_instance", obj{"instance_id": src.InstanceID, "count": 3})
	if !strings.Contains(e.Message, "1 of 3") || !strings.Contains(e.Message, "3 more") {
		t.Errorf("message %q", e.Message)
	}
	sv.fails(t, fault.InvalidArgument, "fork_instance", obj{"instance_id": src.InstanceID, "count": 9})
	var list sandbox.ListInstancesResult
	sv.must(t, "list_instances", obj{"include_expired": true}, &list)
	if len(list.Instances) != 1 || list.SnapshotCount != 0 || glob(st.home, "snapshots", "*") {
		t.Errorf("%+v", list)
	}
	f := sv.fork(t, src.InstanceID, 2)
	destroyAll(t, sv, f.Children[0].InstanceID, f.Children[1].InstanceID, src.InstanceID)
	sv.fails(t, fault.InstanceTerminal, "fork_instance", obj{"instance_id": src.InstanceID})
	sv.fails(t, fault.InstanceTerminal, "snapshot_instance", obj{"instance_id": src.InstanceID})
	st.nothingLeft(t)
}

// TestServerKilledInAFork leaves the source, and no snapshot, child or file that
// nobody knows.
func TestServerKilledInAFork(t *testing.T) {
	for _, c := range []struct {
		name string
		seen func(st *state, src string) bool
	}{
		{"when the state is being written", func(st *state, _ string) bool { return glob(st.home, "snapshots", "snap_*", "state*") }},
		{"when a child's disk is there", func(st *state, src string) bool { return others(st, src) > 0 }},
		{"when two children run", func(st *state, src string) bool { return st.qemus() > 2 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := newState(t)
			sv := st.start(t)
			src := sv.create(t, minimal(st.workspace))
			sv.counter(t, src.InstanceID)
			token, before := sv.count(t, src.InstanceID)
			done := make(chan struct{})
			go func() {
				defer close(done)
				ctx, cancel := contextFor(time.Minute)
				defer cancel()
				_ = sv.call(ctx, "fork_instance", obj{"instance_id": src.InstanceID, "count": 3}, nil)
			}()
			await(t, time.Minute, func() bool { return c.seen(st, src.InstanceID) })
			sv.kill(t)
			<-done
			next := st.start(t)
			await(t, time.Minute, func() bool {
				var list sandbox.ListInstancesResult
				next.must(t, "list_instances", obj{}, &list)
				return len(list.Instances) == 1 && list.SnapshotCount == 0 && st.qemus() == 1
			})
			next.goesOn(t, src.InstanceID, token, before)
			f := next.fork(t, src.InstanceID, 1)
			next.goesOn(t, f.Children[0].InstanceID, token, before)
			destroyAll(t, next, f.Children[0].InstanceID, src.InstanceID)
			st.nothingLeft(t)
		})
	}
}

// others counts the VMs' directories but the source's.
func others(st *state, src string) (n int) {
	all, _ := filepath.Glob(filepath.Join(st.home, "vms", "agent-*"))
	for _, d := range all {
		if filepath.Base(d) != vmName(src) {
			n++
		}
	}
	return n
}

// qemus counts the hypervisors of this state.
func (s *state) qemus() (n int) {
	for _, p := range s.processes() {
		if strings.Contains(p, "qemu-system") {
			n++
		}
	}
	return n
}

// TestSupervisorKilledInASave: the source goes with its supervisor, and what was
// written is taken for nothing.
func TestSupervisorKilledInASave(t *testing.T) {
	st := newState(t)
	sv := st.start(t)
	src := sv.create(t, minimal(st.workspace))
	// Something in memory, so that there is something to write.
	sv.sh(t, src.InstanceID, "head -c 100000000 /dev/urandom > /dev/shm/x 2>/dev/null || head -c 100000000 /dev/urandom > /tmp/x")
	pid := st.supervisorPID(src.InstanceID)
	ended := watch(t, pid)
	failed := make(chan error, 1)
	go func() {
		ctx, cancel := contextFor(time.Minute)
		defer cancel()
		failed <- sv.call(ctx, "snapshot_instance", obj{"instance_id": src.InstanceID}, nil)
	}()
	await(t, time.Minute, func() bool { return glob(st.home, "snapshots", "snap_*", "state*") })
	kill(t, pid)
	ended(10 * time.Second)
	if err := <-failed; err == nil {
		t.Log("the save was faster than the signal")
	} else if te, ok := err.(*toolError); !ok || te.Code != fault.InstanceLost {
		t.Errorf("the call was told %v", err)
	}
	await(t, time.Minute, func() bool { return st.processes() == nil })
	var list sandbox.ListSnapshotsResult
	sv.must(t, "list_snapshots", obj{}, &list)
	for _, s := range list.Snapshots {
		if s.Status != "ready" {
			t.Errorf("%+v", s)
		}
		sv.must(t, "delete_snapshot", obj{"snapshot_id": s.SnapshotID}, nil)
	}
	st.nothingLeft(t)
}

// TestTheClockOfAChild: whatever the guest's clock said when it was saved, a
// child has the host's.
func TestTheClockOfAChild(t *testing.T) {
	st := newState(t)
	sv := st.start(t)
	src := sv.create(t, minimal(st.workspace))
	off := func(id string) time.Duration {
		t.Helper()
		sec, err := strconv.ParseInt(sv.sh(t, id, "date +%s"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Since(time.Unix(sec, 0))
	}
	// Much more than a slow answer takes.
	const much = 10 * time.Minute
	for _, set := range []string{"2001-02-03 04:05:06", "2037-01-01 00:00:00"} {
		sv.sh(t, src.InstanceID, "date -s '"+set+"'")
		if d := off(src.InstanceID); d.Abs() < much {
			t.Fatalf("the guest's clock cannot be set: it is %v off", d)
		}
		var snap sandbox.SnapshotInstanceResult
		sv.must(t, "snapshot_instance", obj{"instance_id": src.InstanceID}, &snap)
		var restored sandbox.CreateInstanceResult
		sv.must(t, "restore_instance", obj{"snapshot_id": snap.SnapshotID}, &restored)
		f := sv.fork(t, src.InstanceID, 1)
		for _, id := range []string{restored.InstanceID, f.Children[0].InstanceID} {
			if d := off(id); d.Abs() > much {
				t.Errorf("saved at %s: the child's clock is %v off", set, d)
			}
		}
		destroyAll(t, sv, restored.InstanceID, f.Children[0].InstanceID)
		sv.must(t, "delete_snapshot", obj{"snapshot_id": snap.SnapshotID}, nil)
		if d := off(src.InstanceID); d.Abs() < much {
			t.Errorf("the source's clock was set by its child: it is %v off", d)
		}
	}
	destroyAll(t, sv, src.InstanceID)
	st.nothingLeft(t)
}
