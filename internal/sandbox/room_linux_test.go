package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

// TestReadyVMsMakeRoomForChildren: what is refused for want of room on the host
// is admitted once the pool has made some; any other refusal costs it nothing.
func TestReadyVMsMakeRoomForChildren(t *testing.T) {
	l := withTemplates(t, "SANDBOX_WARM_POOL=2")
	l.ready(l.s, l.request(), 2)
	pool := func() int { return l.kinds()[store.KindPool] }
	other := errors.New("for another reason")
	if err := l.s.withRoom(l.context(), func() error { return other }); !errors.Is(err, other) || pool() != 2 {
		t.Errorf("%v, %d ready", err, pool())
	}
	tight := fault.New(fault.InsufficientHostResources, "no room")
	tries := 0
	err := l.s.withRoom(l.context(), func() error {
		if tries++; pool() > 1 {
			return tight
		}
		return nil
	})
	if err != nil || tries != 2 || pool() != 1 {
		t.Errorf("%v after %d tries, %d ready", err, tries, pool())
	}
	if err := l.s.withRoom(l.context(), func() error { return tight }); !errors.Is(err, tight) || pool() != 0 {
		t.Errorf("without an end: %v, %d ready", err, pool())
	}
	l.empty()
}

// TestListWithoutTemplates: that the templates cannot be counted hides no
// instance.
func TestListWithoutTemplates(t *testing.T) {
	l := newLab(t)
	src := l.create()
	dir := filepath.Join(l.s.settings.ImageDir, "templates")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := l.s.ListInstances(l.context(), ListInstancesRequest{})
	if err != nil || len(list.Instances) != 1 || list.Instances[0].InstanceID != src.InstanceID {
		t.Errorf("%+v, %v", list, err)
	}
}
