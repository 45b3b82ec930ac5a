package sandbox

import (
	"os"
	"path/filepath"
	"testing"

	"sandboxforge/internal/fault"
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
