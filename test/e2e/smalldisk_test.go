package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
	"sandboxforge/internal/smalldisk"
)

// smallState is a state directory on a file system of its own, which holds few
// files; room lets it take so many more from now on. Space it has enough: what
// a create is admitted by does not show that it will fail, and at which step is
// the test's choice. Outside of it the test has nothing to do.
func smallState(t *testing.T) (st *state, room func(files int), inside bool) {
	t.Setenv("SANDBOX_ACCEL", accel) // found out already
	dir, inside := smalldisk.Run(t, "4g,nr_inodes=1000")
	if !inside {
		return nil, nil, false
	}
	t.Setenv("TMPDIR", dir)
	st = newState(t, "SANDBOX_IMAGE_DIR="+ownImages(t), "SANDBOX_SWEEPER_INTERVAL_SECONDS=3600")
	var fillers []string
	room = func(files int) {
		t.Helper()
		for {
			name := filepath.Join(dir, fmt.Sprintf("filler-%d", len(fillers)))
			f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if errors.Is(err, syscall.ENOSPC) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
			fillers = append(fillers, name)
		}
		for range min(files, len(fillers)) {
			if err := os.Remove(fillers[len(fillers)-1]); err != nil {
				t.Fatal(err)
			}
			fillers = fillers[:len(fillers)-1]
		}
	}
	t.Cleanup(func() { room(1000) })
	return st, room, true
}

// noRoom fails unless err says that there is no room, and what to do about it.
func noRoom(t *testing.T, files int, err error) {
	t.Helper()
	var te *toolError
	if errors.As(err, &te) && files == 0 && te.Code == fault.BackendUnavailable && strings.Contains(fmt.Sprint(te.Details["next_steps"]), "free space") {
		return // the first call looks whether VMs can be made at all
	}
	if !errors.As(err, &te) || te.Code != fault.InsufficientDisk || te.Details["next_steps"] == nil {
		t.Errorf("with room for %d files: %v", files, err)
		if te != nil {
			t.Logf("details: %v", te.Details)
		}
		return
	}
	t.Logf("with room for %d files: %v", files, te)
}

// TestNoRoomForAClone lets each file that a clone needs be the one for which
// there is no room: every create says so and leaves nothing, and the template is
// there for the first that finds room.
func TestNoRoomForAClone(t *testing.T) {
	st, room, inside := smallState(t)
	if !inside {
		return
	}
	if out, err := st.cli("image", "warm", "--image", "minimal", "--memory-gib", "0.25", "--disk-gib", "1"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	sv := st.start(t)
	was := st.templates(t).Templates
	if len(was) != 1 {
		t.Fatalf("%+v", was)
	}
	failed := 0
	for files := 0; ; files++ {
		room(files)
		ctx, cancel := contextFor(5 * time.Minute)
		var res sandbox.CreateInstanceResult
		err := sv.call(ctx, "create_instance", minimal(st.workspace), &res)
		cancel()
		if err == nil {
			t.Logf("with room for %d files: %s %v %v", files, res.StartKind, res.TimingsMS, res.Warnings)
			if res.StartKind != "clone" || res.Warnings != nil {
				t.Errorf("with room for %d files: %s %v", files, res.StartKind, res.Warnings)
			}
			if out := sv.sh(t, res.InstanceID, "echo works"); out != "works" {
				t.Errorf("%q", out)
			}
			destroyAll(t, sv, res.InstanceID)
			break
		}
		failed++
		noRoom(t, files, err)
		var list sandbox.ListInstancesResult
		sv.must(t, "list_instances", obj{"include_internal": true}, &list)
		if len(list.Instances) != 0 {
			t.Errorf("with room for %d files: %+v", files, list.Instances)
		}
		for _, d := range []string{"vms", "instances"} {
			if glob(st.home, d, "[a-z]*") {
				t.Errorf("with room for %d files: left in %s", files, d)
			}
		}
		for _, p := range st.left() {
			t.Errorf("with room for %d files: %s", files, p)
		}
		if files > 100 {
			t.Fatal("no clone comes up although there is room")
		}
	}
	if failed < 5 {
		t.Errorf("only %d creates failed", failed)
	}
	if now := st.templates(t).Templates; len(now) != 1 || now[0].State != was[0].State || now[0].Retired {
		t.Errorf("the template was taken for the host's fault: %+v", now)
	}
	room(1000)
	st.nothingLeft(t)
}

// TestNoRoomForASave is the same for snapshots, forks and restores: the source
// goes on, whatever there is no room for.
func TestNoRoomForASave(t *testing.T) {
	st, room, inside := smallState(t)
	if !inside {
		return
	}
	sv := st.start(t)
	snap := ""
	for _, c := range []struct {
		tool string
		args func(src string) obj
		made func(t *testing.T, raw map[string]any) (destroy string)
	}{
		{"snapshot_instance", func(src string) obj { return obj{"instance_id": src} }, func(t *testing.T, r map[string]any) string {
			snap, _ = r["snapshot_id"].(string)
			return ""
		}},
		{"restore_instance", func(string) obj { return obj{"snapshot_id": snap} }, func(t *testing.T, r map[string]any) string {
			id, _ := r["instance_id"].(string)
			return id
		}},
		{"fork_instance", func(src string) obj { return obj{"instance_id": src} }, func(t *testing.T, r map[string]any) string {
			children, _ := r["children"].([]any)
			if len(children) != 1 {
				t.Fatalf("%v", r)
			}
			id, _ := children[0].(map[string]any)["instance_id"].(string)
			return id
		}},
	} {
		t.Run(c.tool, func(t *testing.T) {
			room(1000)
			src := sv.create(t, minimal(st.workspace))
			sv.counter(t, src.InstanceID)
			token, before := sv.count(t, src.InstanceID)
			failed := 0
			for files := 0; ; files++ {
				room(files)
				if files > 100 {
					t.Fatal("it fails although there is room")
				}
				ctx, cancel := contextFor(5 * time.Minute)
				var r map[string]any
				err := sv.call(ctx, c.tool, c.args(src.InstanceID), &r)
				cancel()
				if err == nil {
					t.Logf("with room for %d files: done", files)
					if id := c.made(t, r); id != "" {
						got, n := sv.count(t, id)
						if c.tool == "fork_instance" && (got != token || n < before) {
							t.Errorf("the child counts %s %d, the source counted %s %d before", got, n, token, before)
						}
						sv.goesOn(t, id, got, n)
						destroyAll(t, sv, id)
					}
					break
				}
				failed++
				noRoom(t, files, err)
				if vms := st.qemus(); vms != 1 {
					t.Errorf("with room for %d files: %d VMs run", files, vms)
				}
				if n := others(st, src.InstanceID); n != 0 {
					t.Errorf("with room for %d files: %d other VMs have files", files, n)
				}
				var list sandbox.ListSnapshotsResult
				sv.must(t, "list_snapshots", obj{}, &list)
				for _, sn := range list.Snapshots {
					if sn.SnapshotID != snap {
						t.Errorf("with room for %d files: %+v", files, sn)
					}
				}
				if _, n := sv.count(t, src.InstanceID); n < before {
					t.Errorf("with room for %d files: the source went back from %d to %d", files, before, n)
				}
			}
			if failed < 3 {
				t.Errorf("only %d calls failed", failed)
			}
			sv.goesOn(t, src.InstanceID, token, before)
			room(1000)
			destroyAll(t, sv, src.InstanceID)
		})
	}
	sv.must(t, "delete_snapshot", obj{"snapshot_id": snap}, nil)
	st.nothingLeft(t)
}
