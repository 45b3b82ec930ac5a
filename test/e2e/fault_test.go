package e2e

import (
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
	"sandboxforge/internal/store"
)

// TestServerKilled kills the server while a task runs: the next one finds the
// instance and the task as they were, and the task's output whole.
func TestServerKilled(t *testing.T) {
	st := newState(t)
	first := st.start(t)
	inst := first.create(t, minimal(st.workspace))
	first.must(t, "run_command", obj{"instance_id": inst.InstanceID, "command": "mkfifo /tmp/go"}, nil)
	var task sandbox.StartBackgroundTaskResult
	first.must(t, "start_background_task", obj{"instance_id": inst.InstanceID, "command": "echo before; cat /tmp/go; echo after"}, &task)
	qemu := st.qemuPID(inst.InstanceID)
	t.Logf("server pid %d, qemu pid %d", first.cmd.Process.Pid, qemu)
	first.kill(t)

	second := st.start(t)
	var list sandbox.ListInstancesResult
	second.must(t, "list_instances", obj{}, &list)
	if len(list.Instances) != 1 || list.Instances[0].Status != "running" || st.qemuPID(inst.InstanceID) != qemu {
		t.Fatalf("the next server sees %+v", list.Instances)
	}
	second.must(t, "run_command", obj{"instance_id": inst.InstanceID, "command": "echo x > /tmp/go"}, nil)
	var s sandbox.Task
	second.must(t, "get_task_status", obj{"task_id": task.TaskID, "wait_seconds": 60}, &s)
	var l sandbox.GetTaskLogsResult
	second.must(t, "get_task_logs", obj{"task_id": task.TaskID, "stream": "stdout"}, &l)
	if s.Status != "succeeded" || l.Logs != "before\nx\nafter\n" {
		t.Errorf("status %s, logs %q", s.Status, l.Logs)
	}
}

// TestServerKilledWhileCreating leaves no VM that nobody knows, whatever the
// moment.
func TestServerKilledWhileCreating(t *testing.T) {
	for _, c := range []struct {
		name string
		when func(t testing.TB, st *state) (seen func() bool)
	}{
		{"when the lease is there", creatingLease},
		{"when the disk is there", func(_ testing.TB, st *state) func() bool {
			return func() bool { return glob(st.home, "vms", "agent-*", "*") }
		}},
		{"when the supervisor runs", func(_ testing.TB, st *state) func() bool {
			return func() bool { return pidOf("__supervise", st.home) != 0 }
		}},
		{"when QEMU runs", func(_ testing.TB, st *state) func() bool {
			return func() bool { return pidOf("qemu-system", st.home) != 0 }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := newState(t)
			sv := st.start(t)
			seen := c.when(t, st)
			if seen() {
				t.Fatal("seen before there is anything")
			}
			go func() {
				ctx, cancel := contextFor(bootDeadline)
				defer cancel()
				_ = sv.call(ctx, "create_instance", minimal(st.workspace), nil)
			}()
			await(t, time.Minute, seen)
			sv.kill(t)

			next := st.start(t)
			var list sandbox.ListInstancesResult
			next.must(t, "list_instances", obj{}, &list)
			await(t, time.Minute, func() bool { return st.processes() == nil })
			await(t, time.Minute, func() bool {
				next.must(t, "list_instances", obj{}, &list)
				return len(list.Instances) == 0
			})
			if glob(st.home, "vms", "agent-*") || glob(st.home, "instances", "agent-*") {
				t.Error("files of the instance are left")
			}
		})
	}
}

// creatingLease reports whether the database of a running server has the lease
// of an instance that is being made.
func creatingLease(t testing.TB, st *state) func() bool {
	t.Helper()
	db, err := store.Open(t.Context(), store.Options{Path: filepath.Join(st.home, "state", "leases.db"), Self: store.Self("e2e")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return func() bool {
		l, err := db.Leases(t.Context(), store.LeaseFilter{Statuses: []store.Status{store.Creating}})
		if err != nil {
			t.Fatal(err)
		}
		return len(l) > 0
	}
}

// TestSupervisorKilled kills the supervisor: its VM dies with it, the lease
// says so, and its name and files are gone.
func TestSupervisorKilled(t *testing.T) {
	st := newState(t)
	sv := st.start(t)
	inst := sv.create(t, minimal(st.workspace))
	var task sandbox.StartBackgroundTaskResult
	sv.must(t, "start_background_task", obj{"instance_id": inst.InstanceID, "command": "sleep 1000"}, &task)
	gone := watch(t, st.qemuPID(inst.InstanceID))
	kill(t, st.supervisorPID(inst.InstanceID))
	gone(20 * time.Second)
	sv.fails(t, fault.InstanceLost, "run_command", obj{"instance_id": inst.InstanceID, "command": "true"})
	var s sandbox.Task
	sv.must(t, "get_task_status", obj{"task_id": task.TaskID}, &s)
	if s.Status != "stopped" || s.ErrorMessage == nil {
		t.Errorf("its task: %+v", s)
	}
	sv.must(t, "destroy_instance", obj{"instance_id": inst.InstanceID}, nil)
	if glob(st.home, "vms", "agent-*") {
		t.Error("the VM's files are left")
	}
}

// TestHypervisorKilled kills QEMU: the supervisor notices and records it.
func TestHypervisorKilled(t *testing.T) {
	st := newState(t)
	sv := st.start(t)
	inst := sv.create(t, minimal(st.workspace))
	running := make(chan error, 1)
	go func() {
		ctx, cancel := contextFor(2 * time.Minute)
		defer cancel()
		running <- sv.call(ctx, "run_command", obj{"instance_id": inst.InstanceID, "command": "sleep 1000"}, nil)
	}()
	await(t, time.Minute, func() bool {
		var l sandbox.ListTasksResult
		sv.must(t, "list_tasks", obj{"instance_id": inst.InstanceID, "kind": "command", "status": "running"}, &l)
		return len(l.Tasks) == 1
	})
	gone := watch(t, st.supervisorPID(inst.InstanceID))
	kill(t, st.qemuPID(inst.InstanceID))
	gone(30 * time.Second)
	var te *toolError
	if err := <-running; !errors.As(err, &te) || (te.Code != fault.InstanceLost && te.Code != fault.OutcomeUnknown) {
		t.Errorf("the command that was running: %v", err)
	}
	te = sv.fails(t, fault.InstanceLost, "run_command", obj{"instance_id": inst.InstanceID, "command": "true"})
	if !strings.Contains(te.Message, "hypervisor died") {
		t.Errorf("the reason is not told: %s", te.Message)
	}
}

// TestExpiryWithoutAServer lets a lease pass while no server lives.
func TestExpiryWithoutAServer(t *testing.T) {
	st := newState(t)
	sv := st.start(t)
	inst := sv.create(t, minimal(st.workspace))
	var task sandbox.StartBackgroundTaskResult
	sv.must(t, "start_background_task", obj{"instance_id": inst.InstanceID, "command": "echo last words; sleep 1000"}, &task)
	waitForLog(t, sv, task.TaskID, "last words")
	sup, qemu := watch(t, st.supervisorPID(inst.InstanceID)), watch(t, st.qemuPID(inst.InstanceID))
	sv.kill(t)
	shortened(t, st, inst.InstanceID, 3*time.Second)
	qemu(time.Minute)
	sup(time.Minute)

	next := st.start(t)
	var list sandbox.ListInstancesResult
	await(t, time.Minute, func() bool {
		next.must(t, "list_instances", obj{"include_expired": true}, &list)
		return len(list.Instances) == 1 && list.Instances[0].Status == "expired"
	})
	var l sandbox.GetTaskLogsResult
	next.must(t, "get_task_logs", obj{"task_id": task.TaskID, "stream": "stdout"}, &l)
	if l.Logs != "last words\n" || l.Status != "stopped" {
		t.Errorf("the task's output after the end: %+v", l)
	}
	next.fails(t, fault.InstanceTerminal, "run_command", obj{"instance_id": inst.InstanceID, "command": "true"})
}

// TestShortTTL creates with the smallest sensible lease: the VM ends by itself
// and the clients see why.
func TestShortTTL(t *testing.T) {
	st := newState(t)
	sv := st.start(t)
	args := minimal(st.workspace)
	args["ttl_minutes"] = 1.0
	inst := sv.create(t, args)
	if pid := st.qemuPID(inst.InstanceID); pid != 0 {
		watch(t, pid)(2 * time.Minute)
	}
	await(t, time.Minute, func() bool {
		var list sandbox.ListInstancesResult
		sv.must(t, "list_instances", obj{"include_expired": true}, &list)
		return list.Instances[0].Status == "expired"
	})
}

// TestTwoServersOneCap has two servers on one database with room for one
// instance, and eight creates at once.
func TestTwoServersOneCap(t *testing.T) {
	st := newState(t, "MAX_INSTANCES=1")
	servers := []*server{st.start(t), st.start(t)}
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := map[string]bool{}
	refused := 0
	for i := range 8 {
		wg.Go(func() {
			ctx, cancel := contextFor(bootDeadline)
			defer cancel()
			var res sandbox.CreateInstanceResult
			err := servers[i%2].call(ctx, "create_instance", minimal(st.workspace), &res)
			var te *toolError
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				made[res.InstanceID] = true
			case errors.As(err, &te) && te.Code == fault.InstanceLimitExceeded:
				refused++
			default:
				t.Errorf("create %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if len(made) != 1 || refused != 7 {
		t.Fatalf("%d made, %d refused; want 1 and 7", len(made), refused)
	}
	// Each sees what the other made, and either can use and end it.
	for id := range made {
		if err := servers[0].logBoot(t.Name(), id); err != nil {
			t.Error(err)
		}
		servers[1].must(t, "run_command", obj{"instance_id": id, "command": "true"}, nil)
		servers[0].must(t, "destroy_instance", obj{"instance_id": id}, nil)
		servers[1].fails(t, fault.InstanceTerminal, "run_command", obj{"instance_id": id, "command": "true"})
	}
}

// TestCancelledCreateLeavesNothing cancels a create while the VM boots.
func TestCancelledCreateLeavesNothing(t *testing.T) {
	st := newState(t)
	sv := st.start(t)
	ctx, cancel := contextFor(bootDeadline)
	done := make(chan error, 1)
	go func() { done <- sv.call(ctx, "create_instance", minimal(st.workspace), nil) }()
	await(t, time.Minute, func() bool { return pidOf("qemu-system", st.home) != 0 })
	cancel()
	<-done
	await(t, time.Minute, func() bool {
		return st.processes() == nil && !glob(st.home, "vms", "agent-*") && !glob(st.home, "instances", "agent-*")
	})
	var list sandbox.ListInstancesResult
	sv.must(t, "list_instances", obj{}, &list)
	if len(list.Instances) != 0 {
		t.Errorf("%+v", list.Instances)
	}
}

// TestReadOnlyHome starts a server whose state directory cannot be written.
func TestReadOnlyHome(t *testing.T) {
	st := newState(t)
	// /proc is read-only for everybody, root included.
	_, err := st.startServer("SANDBOXFORGE_HOME=/proc/sandboxforge")
	if err == nil || !strings.Contains(err.Error(), "SANDBOXFORGE_HOME") {
		t.Errorf("a server with a read-only home: %v", err)
	}
}

func glob(parts ...string) bool {
	m, _ := filepath.Glob(filepath.Join(parts...))
	return len(m) > 0
}

// await waits for what has no event to wait for: the state of other processes.
func await(t testing.TB, within time.Duration, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("not within %v", within)
}
