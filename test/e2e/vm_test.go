package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/sandbox"
)

// minimal is what most tests ask create_instance for.
func minimal(workspace string) obj {
	return obj{
		"workspace_root": workspace, "auto_bootstrap": false,
		"overrides": obj{"vm": obj{"image": "minimal", "memory_gib": 0.25, "disk_gib": 1}},
	}
}

// create makes an instance, logs its boot, and leaves destroying to the state.
func (sv *server) create(t testing.TB, args obj) *sandbox.CreateInstanceResult {
	t.Helper()
	var res sandbox.CreateInstanceResult
	sv.must(t, "create_instance", args, &res)
	if err := sv.logBoot(t.Name(), res.InstanceID); err != nil {
		t.Fatal(err)
	}
	return &res
}

// logBoot shows that a real VM runs: the guest kernel's boot id beside the
// hypervisor's pid.
func (sv *server) logBoot(test, instance string) error {
	var r sandbox.RunCommandResult
	ctx, cancel := contextFor(time.Minute)
	defer cancel()
	if err := sv.call(ctx, "run_command", obj{"instance_id": instance, "command": "cat /proc/sys/kernel/random/boot_id; uname -r"}, &r); err != nil {
		return err
	}
	host, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	id, kernel, _ := strings.Cut(strings.TrimSpace(r.Stdout), "\n")
	if id == "" || id == strings.TrimSpace(string(host)) {
		return fmt.Errorf("the guest's boot id is %q and the host's %q: no VM of its own", id, host)
	}
	pid := sv.qemuPID(instance)
	line := fmt.Sprintf("%s pid %d kernel %s accel %s %s\n", id, pid, kernel, accel, test)
	if path := os.Getenv("SANDBOXFORGE_TEST_BOOTS"); path != "" {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		_, werr := f.WriteString(line)
		if err := errors.Join(werr, f.Close()); err != nil {
			return err
		}
	}
	fmt.Fprint(os.Stderr, "boot: "+line)
	return nil
}

// sharedVM is one VM with Docker for all tests that neither end it nor care
// what others left in it.
var sharedVM struct {
	once sync.Once
	err  error
	sv   *server
	res  sandbox.CreateInstanceResult
}

// shared returns the VM with Docker and a server that knows it.
func shared(t testing.TB) (*server, *sandbox.CreateInstanceResult) {
	t.Helper()
	v := &sharedVM
	v.once.Do(func() {
		var st *state
		if st, v.err = makeState(); v.err != nil {
			return
		}
		if v.err = os.CopyFS(st.workspace, os.DirFS(repo+"/examples/logreport")); v.err != nil {
			return
		}
		if v.sv, v.err = st.startServer(); v.err != nil {
			return
		}
		ctx, cancel := contextFor(10 * time.Minute)
		defer cancel()
		v.err = v.sv.call(ctx, "create_instance", obj{"workspace_root": st.workspace, "wait_for_ready": true, "ttl_minutes": 120}, &v.res)
		if v.err == nil {
			v.err = v.sv.logBoot("shared", v.res.InstanceID)
		}
	})
	if v.err != nil {
		if v.sv != nil {
			t.Logf("server log:\n%s", lastBytes(v.sv.log.String(), 20_000))
		}
		t.Fatalf("the shared VM: %v", v.err)
	}
	return v.sv, &v.res
}

// closers end what tests share besides that VM.
var closers []func() error

func closeShared() error {
	var errs []error
	for _, f := range closers {
		errs = append(errs, f())
	}
	if v := &sharedVM; v.sv != nil {
		v.sv.session.Close()
		errs = append(errs, v.sv.close())
	}
	return errors.Join(errs...)
}
