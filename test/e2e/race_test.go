package e2e

import (
	"testing"
	"time"

	"sandboxforge/internal/sandbox"
)

// creating waits until an instance is being created and returns its id.
func creating(t testing.TB, sv *server) string {
	t.Helper()
	var id string
	await(t, time.Minute, func() bool {
		var list sandbox.ListInstancesResult
		sv.must(t, "list_instances", obj{}, &list)
		for _, i := range list.Instances {
			if i.Status == "creating" {
				id = i.InstanceID
			}
		}
		return id != ""
	})
	return id
}

// TestRequestOutlivesItsServer kills the server that was creating for a
// request_id. The same call to the next server makes the one VM that was asked
// for, and a third returns it again.
func TestRequestOutlivesItsServer(t *testing.T) {
	st := newState(t, "MAX_INSTANCES=1")
	args := minimal(st.workspace)
	args["request_id"] = "only-one"
	first := st.start(t)
	go func() {
		ctx, cancel := contextFor(bootDeadline)
		defer cancel()
		_ = first.call(ctx, "create_instance", args, nil) // its server dies
	}()
	await(t, time.Minute, func() bool { return pidOf("qemu-system", st.home) != 0 })
	first.kill(t)

	second := st.start(t)
	inst := second.create(t, args)
	var list sandbox.ListInstancesResult
	second.must(t, "list_instances", obj{}, &list)
	if len(list.Instances) != 1 || list.Instances[0].InstanceID != inst.InstanceID || list.Instances[0].Status != "running" {
		t.Errorf("after the repeat: %+v", list.Instances)
	}
	if n := len(st.processes()); n != 2 {
		t.Errorf("%d processes, want a supervisor and its QEMU: %v", n, st.processes())
	}
	var again sandbox.CreateInstanceResult
	second.must(t, "create_instance", args, &again)
	if again.InstanceID != inst.InstanceID {
		t.Errorf("the same request made %s and %s", inst.InstanceID, again.InstanceID)
	}
}

// TestDestroyWhileCreating destroys an instance at several moments of its
// creation: the create fails, and nothing is left.
func TestDestroyWhileCreating(t *testing.T) {
	for name, when := range map[string]func(st *state) bool{
		"at once":          func(*state) bool { return true },
		"with its disk":    func(st *state) bool { return glob(st.home, "vms", "agent-*", "*.qcow2") },
		"while QEMU boots": func(st *state) bool { return pidOf("qemu-system", st.home) != 0 },
	} {
		t.Run(name, func(t *testing.T) {
			st := newState(t)
			sv := st.start(t)
			done := make(chan error, 1)
			go func() {
				ctx, cancel := contextFor(bootDeadline)
				defer cancel()
				done <- sv.call(ctx, "create_instance", minimal(st.workspace), nil)
			}()
			id := creating(t, sv)
			await(t, time.Minute, func() bool { return when(st) })
			sv.must(t, "destroy_instance", obj{"instance_id": id}, nil)
			if err := <-done; err == nil {
				t.Error("a create whose instance was destroyed succeeded")
			}
			await(t, time.Minute, func() bool {
				return st.processes() == nil && !glob(st.home, "vms", "agent-*") && !glob(st.home, "instances", "agent-*")
			})
		})
	}
}

// TestExtendersAtOnce has many extensions and sweeps at once near each other:
// the supervisor's deadline is the row's in the end, so the VM lives.
func TestExtendersAtOnce(t *testing.T) {
	st := newState(t)
	servers := []*server{st.start(t), st.start(t)}
	args := minimal(st.workspace)
	args["ttl_minutes"] = 5
	inst := servers[0].create(t, args)
	done := make(chan error, 20)
	for i := range 20 {
		go func() {
			ctx, cancel := contextFor(2 * time.Minute)
			defer cancel()
			done <- servers[i%2].call(ctx, "extend_instance_ttl", obj{"instance_id": inst.InstanceID, "ttl_minutes": 1}, nil)
		}()
	}
	for range 20 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	var list sandbox.ListInstancesResult
	servers[0].must(t, "list_instances", obj{}, &list)
	row, err := time.Parse(time.RFC3339, list.Instances[0].ExpiresAt)
	if err != nil {
		t.Fatal(err)
	}
	created, err := time.Parse(time.RFC3339, inst.ExpiresAt)
	if err != nil {
		t.Fatal(err)
	}
	if got := row.Sub(created); got != 20*time.Minute {
		t.Errorf("twenty extensions of a minute added %v", got)
	}
	if d := supervisorDeadline(t, st, inst.InstanceID).Sub(row); d.Abs() > time.Second {
		t.Errorf("the supervisor's deadline is %v off the lease's", d)
	}
}
