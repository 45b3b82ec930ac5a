package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// TestNoMemoryForAClone: where QEMU gets no memory, or is killed for it as the
// kernel does, every create says so and leaves nothing, and the template is
// there for the first that gets some.
func TestNoMemoryForAClone(t *testing.T) {
	const gib = 3
	st := newState(t, "SANDBOX_IMAGE_DIR="+ownImages(t), "SANDBOX_SWEEPER_INTERVAL_SECONDS=3600")
	if out, err := st.cli("image", "warm", "--image", "minimal", "--memory-gib", fmt.Sprint(gib), "--disk-gib", "1"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	sv := st.start(t)
	args := minimal(st.workspace)
	args["overrides"].(obj)["vm"].(obj)["memory_gib"] = gib
	was := st.templates(t).Templates
	if len(was) != 1 {
		t.Fatalf("%+v", was)
	}
	for _, c := range []struct {
		name string
		dry  func(t *testing.T) (again func())
	}{
		// What a process of the server's may map is the guest's memory and no more:
		// enough for Go, not for QEMU.
		{"address space", func(t *testing.T) func() {
			var old unix.Rlimit
			limit := func(to unix.Rlimit, old *unix.Rlimit) {
				if err := unix.Prlimit(sv.cmd.Process.Pid, unix.RLIMIT_AS, &to, old); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Prlimit(sv.cmd.Process.Pid, unix.RLIMIT_AS, nil, &old); err != nil {
				t.Fatal(err)
			}
			limit(unix.Rlimit{Cur: gib << 30, Max: old.Max}, nil)
			return func() { limit(old, nil) }
		}},
		{"killed", func(t *testing.T) func() {
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					if pid := pidOf("qemu-system", st.home+"/"); pid != 0 {
						unix.Kill(pid, unix.SIGKILL)
					}
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond): // nothing announces a process
					}
				}
			}()
			return func() { close(stop); <-stopped }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			again := c.dry(t)
			ctx, cancel := contextFor(5 * time.Minute)
			err := sv.call(ctx, "create_instance", args, nil)
			cancel()
			again()
			var te *toolError
			if !errors.As(err, &te) || te.Code != fault.InsufficientHostResources || te.Details["next_steps"] == nil {
				t.Errorf("without memory: %v", err)
			}
			t.Logf("%+v", te)
			var list sandbox.ListInstancesResult
			sv.must(t, "list_instances", obj{"include_internal": true}, &list)
			if len(list.Instances) != 0 {
				t.Errorf("%+v", list.Instances)
			}
			st.nothingLeft(t)
			if now := st.templates(t).Templates; len(now) != 1 || now[0].State != was[0].State || now[0].Retired {
				t.Errorf("the template was taken for the host's fault: %+v", now)
			}
			res := sv.create(t, args)
			if res.StartKind != "clone" || res.Warnings != nil {
				t.Errorf("with memory: %s %v", res.StartKind, res.Warnings)
			}
			destroyAll(t, sv, res.InstanceID)
		})
	}
}
