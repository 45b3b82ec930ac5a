package qemu

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandboxforge/internal/backend"
)

// lowestState is a scripted VM on a saved state, and a directory for more.
func lowestState(t *testing.T) (v *vm, q *scripted, base, tmp string) {
	t.Helper()
	b, _ := newBackend(t)
	tmp = t.TempDir()
	base = filepath.Join(tmp, "base")
	madeState(t, b, base, func(r *stateRecord) { r.Saved.DiskSize = 1 << 30 })
	v, q = scriptedVM(t, b, base)
	return v, q, base, tmp
}

// TestTransferGoesOnWhenTheMigrationIsOver: QEMU says that it is before the guest
// may go on.
func TestTransferGoesOnWhenTheMigrationIsOver(t *testing.T) {
	v, q, _, tmp := lowestState(t)
	v.b.blind, q.still = true, 2
	if _, err := v.Save(t.Context(), filepath.Join(tmp, "saved"), backend.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	if q.paused || q.still != 0 {
		t.Errorf("the guest stands still: %t, asked for %d times too few", q.paused, q.still)
	}
}

// TestTornTransferAtTheEnd: a VM that was to end with its save goes on when the
// memory did not arrive.
func TestTornTransferAtTheEnd(t *testing.T) {
	v, q, _, tmp := lowestState(t)
	v.b.blind, q.torn = true, true
	saved := filepath.Join(tmp, "saved")
	if _, err := v.Save(t.Context(), saved, backend.SaveOptions{End: true}); err == nil {
		t.Fatal("the save did not fail")
	}
	if q.paused {
		t.Error("the guest stands still")
	}
	if _, err := os.Lstat(saved); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something of it is left: %v", err)
	}
}

// TestFailedSavesWithoutAnAnswer: QEMU may not say whether the
// guest has its new disk.
func TestFailedSavesWithoutAnAnswer(t *testing.T) {
	t.Run("done", func(t *testing.T) {
		v, q, _, tmp := lowestState(t)
		v.b.limits.diskSwitch, q.lose = 50*time.Millisecond, "blockdev-snapshot"
		st, err := v.Save(t.Context(), filepath.Join(tmp, "one"), backend.SaveOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if v.node != q.top || v.record.Parent != st.Dir || q.paused {
			t.Errorf("the guest writes to %s, and the VM's record says %s on %s", q.top, v.node, v.record.Parent)
		}
	})
	t.Run("not done", func(t *testing.T) {
		v, q, _, tmp := lowestState(t)
		v.b.limits.diskSwitch, q.ignore = 50*time.Millisecond, "blockdev-snapshot"
		dir := filepath.Join(tmp, "one")
		if _, err := v.Save(t.Context(), dir, backend.SaveOptions{}); err == nil {
			t.Fatal("the save did not fail")
		}
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) || q.paused || q.top != rootNode || len(q.nodes) != 1 {
			t.Errorf("left: %v; the guest has %s of %v", err, q.top, q.nodes)
		}
		v.b.limits.diskSwitch, q.ignore = saveLimit, ""
		if _, err := v.Save(t.Context(), dir, backend.SaveOptions{}); err != nil {
			t.Errorf("the save after it: %v", err)
		}
	})
	t.Run("nobody knows", func(t *testing.T) {
		v, q, base, tmp := lowestState(t)
		q.cut = "blockdev-snapshot"
		dir := filepath.Join(tmp, "one")
		old := q.writes()
		if _, err := v.Save(t.Context(), dir, backend.SaveOptions{}); err == nil {
			t.Fatal("the save did not fail")
		}
		for _, disk := range []string{old, q.writes(), filepath.Join(dir, stateDisk), filepath.Join(base, stateDisk)} {
			if _, err := os.Stat(disk); err != nil {
				t.Errorf("a disk that the guest may need: %v", err)
			}
		}
		if _, err := v.Save(t.Context(), filepath.Join(tmp, "two"), backend.SaveOptions{}); err == nil {
			t.Error("it was saved again")
		}
		if _, err := os.Lstat(filepath.Join(tmp, "two")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("something was begun: %v", err)
		}
	})
}

// saveThrice gives a VM a chain that can be flattened.
func saveThrice(t *testing.T, v *vm, tmp string) (states []string) {
	t.Helper()
	for _, name := range []string{"one", "two", "three"} {
		dir := filepath.Join(tmp, name)
		if _, err := v.Save(t.Context(), dir, backend.SaveOptions{}); err != nil {
			t.Fatal(err)
		}
		states = append(states, dir)
	}
	return states
}

// flat fails unless the VM's disk lies on the lowest state, QEMU has nothing of
// the disks between, and it was not asked what kills it.
func flat(t *testing.T, v *vm, q *scripted, base string) {
	t.Helper()
	on, err := readVM(v.b.dir(v.name), v.name)
	if err != nil || on.Parent != base || on.Layers != 1 || v.record.Parent != base {
		t.Errorf("the VM's disk lies on %+v, %v", on, err)
	}
	if q.job != "" || q.dead || len(q.nodes) != 1 || q.depth(q.top) != 2 {
		t.Errorf("QEMU has the job %q (dead: %t) and the disks %v", q.job, q.dead, q.nodes)
	}
}

// TestFlatteningIsSeenToItsEnd: QEMU may fail to tell of its jobs.
func TestFlatteningIsSeenToItsEnd(t *testing.T) {
	t.Run("after a while", func(t *testing.T) {
		v, q, base, tmp := lowestState(t)
		saveThrice(t, v, tmp)
		q.noJobs = 3
		if err := v.flatten(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		flat(t, v, q, base)
	})
	leave := func(t *testing.T) (v *vm, q *scripted, base, tmp string) {
		v, q, base, tmp = lowestState(t)
		saveThrice(t, v, tmp)
		v.b.limits.jobEnd, q.noJobs = 50*time.Millisecond, 1<<30
		if err := v.flatten(t.Context(), 0); err == nil {
			t.Fatal("it did not fail")
		}
		if v.record.Layers != 4 || q.job == "" {
			t.Fatalf("%d layers, the job is %q", v.record.Layers, q.job)
		}
		v.b.limits.jobEnd, q.noJobs = jobEnd, 0
		return v, q, base, tmp
	}
	t.Run("by the next try", func(t *testing.T) {
		v, q, base, _ := leave(t)
		if err := v.flatten(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		flat(t, v, q, base)
	})
	t.Run("by the next save", func(t *testing.T) {
		v, q, base, tmp := leave(t)
		st, err := v.Save(t.Context(), filepath.Join(tmp, "four"), backend.SaveOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if st.Parent != base || v.record.Layers != 2 || q.job != "" || q.dead || q.depth(q.top) != 3 {
			t.Errorf("saved on %s; the VM's record %+v; QEMU has %d disks below, the job %q (dead: %t)", st.Parent, v.record, q.depth(q.top), q.job, q.dead)
		}
	})
}

// TestFlatteningThatCannotCleanUp: the chain is short all the same, and the other
// states are let go.
func TestFlatteningThatCannotCleanUp(t *testing.T) {
	v, q, base, tmp := lowestState(t)
	states := saveThrice(t, v, tmp)
	vdir := v.b.dir(v.name)
	// The lock cannot be opened.
	lock := filepath.Join(states[1], stateLock)
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(lock, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := v.flatten(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	flat(t, v, q, base)
	for i, dir := range states {
		if _, err := os.Lstat(userLink(dir, vdir, needsDisk)); (err == nil) != (i == 1) {
			t.Errorf("%s has the VM as its user: %v", dir, err)
		}
	}
}

// TestFlatteningThatDoesNotEnd: a job that QEMU does not cancel is not waited for
// for ever, and nothing is asked of QEMU's disks before it has ended.
func TestFlatteningThatDoesNotEnd(t *testing.T) {
	v, q, base, tmp := lowestState(t)
	saveThrice(t, v, tmp)
	ctx, cancel := context.WithCancel(t.Context())
	q.began, v.b.limits.jobEnd = cancel, 50*time.Millisecond
	if err := v.flatten(ctx, 0); err == nil {
		t.Fatal("it did not fail")
	}
	four := filepath.Join(tmp, "four")
	if _, err := v.Save(t.Context(), four, backend.SaveOptions{}); err == nil {
		t.Error("the VM was saved beside the job")
	}
	if _, err := os.Lstat(four); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was begun: %v", err)
	}
	q.began, q.job, v.b.limits.jobEnd = nil, "concluded", jobEnd
	if err := v.flatten(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	flat(t, v, q, base)
}

// TestSaveAtTheLayerLimit: a save needs the chain short, and no more than that.
func TestSaveAtTheLayerLimit(t *testing.T) {
	v, q, base, tmp := lowestState(t)
	states := saveThrice(t, v, tmp)
	v.record.Layers = maxLayers
	q.refuse = "block-stream"
	four := filepath.Join(tmp, "four")
	if _, err := v.Save(t.Context(), four, backend.SaveOptions{}); err == nil {
		t.Error("saved, with more disks than there may be")
	}
	if _, err := os.Lstat(four); !errors.Is(err, fs.ErrNotExist) || q.paused {
		t.Errorf("something was begun: %v", err)
	}
	q.refuse = ""
	// Its users cannot be changed.
	users := filepath.Join(states[1], stateUsers)
	if err := os.RemoveAll(users); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(users, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := v.Save(t.Context(), four, backend.SaveOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if st.Parent != base || v.record.Layers != 2 {
		t.Errorf("saved on %s, and the VM has %d layers", st.Parent, v.record.Layers)
	}
}

// TestFlatteningIsStoppedWithoutTheMutex: who ends a VM does not wait for a
// flattening that somebody else waits for.
func TestFlatteningIsStoppedWithoutTheMutex(t *testing.T) {
	v := new(vm)
	done, cancelled := make(chan struct{}), make(chan struct{})
	v.flat.done = done
	v.flat.cancel = func() {
		select {
		case <-cancelled:
		default:
			close(cancelled)
		}
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); v.stopFlattening() }()
	<-cancelled
	v.endFlattening() // would wait for ever
	close(done)
	<-stopped
	if v.flat.cancel != nil || !v.flat.ended {
		t.Errorf("%+v", &v.flat)
	}
}
