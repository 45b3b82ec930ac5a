package lima

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/guestbin"
)

// needsAgent: a base is known by the agent that is in it.
func needsAgent(t *testing.T) {
	t.Helper()
	if _, err := guestbin.Agent("amd64"); err != nil {
		t.Fatalf("%v", err)
	}
}

// TestBase: one is made for all who ask at once, and VMs are clones of it.
func TestBase(t *testing.T) {
	needsAgent(t)
	c := newConfig(t)
	b := newBackend(t, c)
	var made atomic.Int32
	progress := func(stage, message string) {
		t.Logf("%s: %s", stage, message)
		if strings.HasPrefix(message, "making an instance") {
			made.Add(1)
		}
	}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := b.Prepare(within(t, time.Minute), spec("any"), progress); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made.Load() != 1 {
		t.Errorf("%d bases were made", made.Load())
	}
	if all, err := b.List(within(t, time.Minute)); err != nil || len(all) > 0 {
		t.Errorf("a base is listed as a VM: %+v, %v", all, err)
	}
	base, ok := b.readyBase(within(t, time.Minute), spec("vm-1"))
	if !ok {
		t.Fatal("no base is ready")
	}
	stamp, err := os.ReadFile(filepath.Join(b.instanceDir(base), "guest-stamp"))
	if err != nil {
		t.Fatal(err)
	}
	big := spec("vm-1")
	big.CPUs, big.MemoryMiB, big.DiskBytes = 2, 4096, 30<<30
	if err := b.Create(within(t, time.Minute), big); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(b.instanceDir("vm-1"), "guest-stamp")); err != nil || string(got) != string(stamp) {
		t.Errorf("vm-1 is no clone of the base: %v", err)
	}
	m := startVM(t, b, "vm-1")
	stream, err := m.DialAgent(within(t, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if id, err := who(within(t, time.Minute), stream); err != nil || id == "" {
		t.Errorf("%q, %v", id, err)
	}
	// A base cannot be cloned into less than itself; it is made of the template.
	small := spec("vm-2")
	small.DiskBytes = baseDisk - 1<<30
	if err := b.Create(within(t, time.Minute), small); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(b.instanceDir("vm-2"), "guest-stamp")); err == nil {
		t.Error("a VM with a smaller disk is a clone of the base")
	}
	// Where a clone fails there is still the template.
	faults(t, c, "clone late")
	createVM(t, b, "vm-3")
	if i := state(t, b, "vm-3"); i.State != backend.Stopped {
		t.Errorf("%+v", i)
	}
}

// TestFailedBase leaves nothing, and VMs are made all the same.
func TestFailedBase(t *testing.T) {
	needsAgent(t)
	c := newConfig(t)
	b := newBackend(t, c)
	faults(t, c, "hostagent fail")
	if err := b.Prepare(within(t, time.Minute), spec("any"), nil); err == nil {
		t.Fatal("a base whose VM does not start was made")
	}
	if entries, err := filepath.Glob(filepath.Join(c.StateDir, "base-*")); err != nil || len(entries) > 0 {
		t.Errorf("left: %q, %v", entries, err)
	}
	faults(t, c, "")
	createVM(t, b, "vm-1")
}
