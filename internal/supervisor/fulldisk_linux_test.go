package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/smalldisk"
)

// TestAnEndOnAFullDisk: why a VM ended is recorded although there is no room,
// and so is that its tasks' output is missing. It runs in a mount namespace of
// its own, on a small file system.
func TestAnEndOnAFullDisk(t *testing.T) {
	dir, inside := smalldisk.Run(t, "1m")
	if !inside {
		return
	}
	if err := reserveEnd(dir); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4<<10))
	}
	e := &End{InstanceID: "inst-1", Name: "vm-1", Reason: "hypervisor died", Detail: strings.Repeat("d", 10<<10), At: time.Now(),
		Console: strings.Repeat("c", 4<<10), Tasks: []TaskEnd{{ID: "t", Status: "running", StdoutTail: make([]byte, tailBytes)}}}
	if err := writeEnd(dir, e); err != nil {
		t.Fatal(err)
	}
	got, err := ReadEnd(dir)
	if err != nil || got.Reason != e.Reason || got.InstanceID != e.InstanceID || len(got.Tasks) != 0 || !strings.Contains(got.TasksMissing, "no space") {
		t.Errorf("%+v, %v", got, err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 2 { // the disk and the record
		t.Errorf("left: %v, %v", left, err)
	}
}
