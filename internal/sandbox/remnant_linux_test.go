package sandbox

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/smalldisk"
	"sandboxforge/internal/store"
)

// at is a context that ends after f was called at the first report of a stage.
func (l *lab) at(stage string, f func()) context.Context {
	ctx, cancel := context.WithCancel(l.context())
	l.t.Cleanup(cancel)
	return WithProgress(ctx, func(p Progress) {
		if p.Stage == stage && ctx.Err() == nil {
			f()
			cancel()
		}
	})
}

// TestWhatCannotBeRemoved: a fork that fails names the VMs that it leaves, and a
// repeat that can remove them goes on.
func TestWhatCannotBeRemoved(t *testing.T) {
	l := newLab(t)
	src := l.create().InstanceID
	unlock := func() {
		if err := os.Remove(filepath.Join(l.conf().Faults, "fail-delete")); err != nil {
			t.Fatal(err)
		}
	}
	r := ForkInstanceRequest{InstanceID: src, RequestID: "f"}
	child := ""
	_, err := l.s.ForkInstance(l.at("running", func() {
		child = l.active()[0] // the newest
		l.token("fail-delete")
	}), r)
	f := wantCode(t, err, fault.Cancelled)
	if strings.Contains(f.Error(), "children removed") || !strings.Contains(f.Error(), child) ||
		!strings.Contains(strings.Join(f.NextSteps, "\n"), "destroy_instance with instance_id "+child) {
		t.Errorf("%v: %v", err, f.NextSteps)
	}
	unlock()
	out, err := l.s.ForkInstance(l.context(), r)
	if err != nil || out.Created != 1 || len(out.Children) != 1 || l.status(child) != store.Destroyed {
		t.Fatalf("%+v %v, and %s is %s", out, err, child, l.status(child))
	}
	l.destroy(out.Children[0].InstanceID)
	// One child of two fails to start and stays.
	l.token("fail-start-1")
	l.token("fail-delete")
	out, err = l.s.ForkInstance(l.context(), ForkInstanceRequest{InstanceID: src, Count: count(2)})
	unlock()
	if err != nil || out.Created != 1 || !strings.Contains(strings.Join(out.Warnings, "\n"), "1 of 2 children did not come up and could not be removed") {
		t.Fatalf("%+v %v", out, err)
	}
	for _, c := range out.Children {
		if c.Error != nil && !strings.Contains(c.Error.Message, c.InstanceID+" could not be removed") {
			t.Errorf("%+v", c.Error)
		}
	}
	l.empty()
}

// TestACancelledForkOnAFullDisk: its children are removed although the database
// cannot say so first, for want of the space that they take.
func TestACancelledForkOnAFullDisk(t *testing.T) {
	dir, inside := smalldisk.Run(t, "2m")
	if !inside {
		return
	}
	l := newLab(t, "LEASE_DB_PATH="+filepath.Join(dir, "leases.db"))
	src := l.create().InstanceID
	_, err := l.s.ForkInstance(l.at("children", func() {
		disk := filepath.Join(dir, "disk")
		if err := os.Symlink(disk, filepath.Join(l.conf().Faults, "disk")); err != nil {
			t.Error(err)
		}
		fill(t, disk)
		if _, _, err := l.s.store.Extend(t.Context(), src, time.Minute, 100*time.Hour); !fault.Is(err, fault.InsufficientDisk) {
			t.Errorf("the disk is not full: %v", err)
		}
	}), ForkInstanceRequest{InstanceID: src})
	f := wantCode(t, err, fault.Cancelled)
	if !strings.Contains(f.Error(), "its children removed") {
		t.Errorf("%v", err)
	}
	l.onlySource(src)
	l.empty()
}
