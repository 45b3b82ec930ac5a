package sandbox

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

// TestSnapshotsLast: a snapshot is settled before it is called ready, a fork
// does not wait for that, and what cannot be settled is no snapshot.
func TestSnapshotsLast(t *testing.T) {
	l := newLab(t)
	src := l.create()
	settled := func(id string) bool {
		_, err := os.Stat(filepath.Join(l.conf().Faults, "settled-"+id))
		return err == nil
	}
	sn, err := l.s.SnapshotInstance(l.context(), SnapshotInstanceRequest{InstanceID: src.InstanceID})
	if err != nil {
		t.Fatal(err)
	}
	if !settled(sn.SnapshotID) {
		t.Error("the snapshot is ready and not settled")
	}
	fork, err := l.s.ForkInstance(l.context(), ForkInstanceRequest{InstanceID: src.InstanceID})
	if err != nil {
		t.Fatal(err)
	}
	if settled(fork.SnapshotID) {
		t.Error("the fork waited for its state to be settled")
	}
	l.destroy(fork.Children[0].InstanceID)
	if _, err := l.s.DeleteSnapshot(l.context(), DeleteSnapshotRequest{SnapshotID: sn.SnapshotID}); err != nil {
		t.Fatal(err)
	}
	// The manifests beside the state are written through too.
	lease, err := l.s.store.Lease(t.Context(), src.InstanceID)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(l.s.manifestDir(lease), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(l.s.manifestDir(lease), "aa.manifest"), []byte("m"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.token("lose-manifest")
	if _, err := l.s.SnapshotInstance(l.context(), SnapshotInstanceRequest{InstanceID: src.InstanceID}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if err := os.Remove(filepath.Join(l.conf().Faults, "lose-manifest")); err != nil {
		t.Fatal(err)
	}
	l.onlySource(src.InstanceID)
	l.token("fail-settle")
	if _, err := l.s.SnapshotInstance(l.context(), SnapshotInstanceRequest{InstanceID: src.InstanceID}); !fault.Is(err, fault.InsufficientDisk) {
		t.Errorf("%v", err)
	}
	l.onlySource(src.InstanceID)
}

// TestDeleteOfWhatIsBeingMade: a delete has a result or says why not, also when
// the snapshot becomes ready in the middle of it.
func TestDeleteOfWhatIsBeingMade(t *testing.T) {
	l := newLab(t)
	src := l.create()
	for range 20 {
		made := make(chan error, 1)
		go func() {
			_, err := l.s.SnapshotInstance(l.context(), SnapshotInstanceRequest{InstanceID: src.InstanceID})
			made <- err
		}()
		for ctx, deleted := l.context(), false; !deleted; {
			list, err := l.s.ListSnapshots(ctx, ListSnapshotsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for _, sn := range list.Snapshots {
				r, err := l.s.DeleteSnapshot(ctx, DeleteSnapshotRequest{SnapshotID: sn.SnapshotID})
				if deleted = err == nil; deleted && r == nil {
					t.Fatal("a delete without a result")
				}
			}
		}
		if err := <-made; err != nil {
			t.Error(err)
		}
	}
	l.onlySource(src.InstanceID)
}

// traces are the files with which the lab's backend says what it did.
func (l *lab) traces(what string) []string {
	l.t.Helper()
	list, err := filepath.Glob(filepath.Join(l.conf().Faults, what+"-snap_*"))
	if err != nil {
		l.t.Fatal(err)
	}
	return list
}

// TestCancelledInTime: a guest does not stand still for a call that was cancelled
// before, and what was saved for one that was cancelled meanwhile is not settled.
func TestCancelledInTime(t *testing.T) {
	l := newLab(t)
	src := l.create().InstanceID
	_, err := l.s.SnapshotInstance(l.cancelAt("save"), SnapshotInstanceRequest{InstanceID: src})
	wantCode(t, err, fault.Cancelled)
	_, err = l.s.ForkInstance(l.cancelAt("save"), ForkInstanceRequest{InstanceID: src})
	wantCode(t, err, fault.Cancelled)
	l.s.wg.Wait() // the background work of the service
	if got := l.traces("paused"); len(got) > 0 {
		t.Errorf("the guest stood still: %v", got)
	}
	l.onlySource(src)

	reached, release := l.hold("save")
	ctx, cancel := context.WithCancel(l.context())
	failed := make(chan error, 1)
	go func() {
		_, err := l.s.SnapshotInstance(ctx, SnapshotInstanceRequest{InstanceID: src})
		failed <- err
	}()
	reached()
	cancel()
	wantCode(t, <-failed, fault.Cancelled)
	release()
	l.s.wg.Wait()
	if got := l.traces("paused"); len(got) != 1 {
		t.Errorf("the guest stood still for %v", got)
	}
	if got := l.traces("settled"); len(got) > 0 {
		t.Errorf("settled: %v", got)
	}
	l.onlySource(src)
	l.empty()
}

// TestCancelledWhenSaved: a cancelled call leaves no snapshot, however late it is
// cancelled, and can be repeated.
func TestCancelledWhenSaved(t *testing.T) {
	l := newLab(t)
	src := l.create().InstanceID
	r := SnapshotInstanceRequest{InstanceID: src, RequestID: "s"}
	_, err := l.s.SnapshotInstance(l.cancelAt("saved"), r)
	wantCode(t, err, fault.Cancelled)
	l.onlySource(src)
	if out, err := l.s.SnapshotInstance(l.context(), r); err != nil || out.Status != "ready" || len(out.Children) != 0 {
		t.Errorf("%+v %v", out, err)
	}
}

// TestASaveThatTakesTooLong says so, and nothing about the supervisor, which is
// well.
func TestASaveThatTakesTooLong(t *testing.T) {
	l := newLab(t)
	src := l.create().InstanceID
	lease, err := l.s.store.Lease(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	sn, _, done, err := l.s.beginSnapshot(l.context(), lease, store.NewSnapshot{Kind: store.SnapshotKept}, nil, store.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	reached, release := l.hold("save")
	ctx, cancel := context.WithCancel(l.context())
	failed := make(chan error, 1)
	go func() {
		_, err := l.s.write(ctx, sn, lease, func() error { return nil })
		failed <- err
	}()
	reached()
	cancel()
	err = <-failed
	if f := wantCode(t, err, fault.BackendCommandFailed); !strings.Contains(f.Message, "not saved within") {
		t.Errorf("%v", err)
	}
	release()
	done()
	l.eventually(func() bool { l.gc(); return len(l.rows()) == 0 })
	l.onlySource(src)
	l.empty()
}
