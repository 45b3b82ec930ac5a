package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/sandbox"
)

func TestSnapshotCommands(t *testing.T) {
	at := func(d time.Duration) string { return time.Now().Add(-d).UTC().Format(time.RFC3339) }
	f := &fakeService{snapshots: []sandbox.Snapshot{
		{SnapshotID: "snap_11111111", Kind: "snapshot", Status: "ready", Name: "before\x1b[2J", InstanceID: "inst_0a0a0a0a", CreatedAt: at(time.Hour), MemoryBytes: 2 << 20, DiskBytes: 1 << 20},
		{SnapshotID: "snap_12222222", Kind: "fork", Status: "ready", InstanceID: "inst_0b0b0b0b", CreatedAt: at(2 * time.Hour), MemoryBytes: 1 << 20, Children: []string{"inst_0c0c0c0c"}},
	}}
	code, out, _ := f.run(t, "snapshot", "list")
	want := `SNAPSHOT KIND STATUS NAME SOURCE AGE MEMORY DISK IN USE
snap_11111111 snapshot ready before inst_0a0a0a0a 1h00m 2.0 MiB 1.0 MiB 0
snap_12222222 fork ready - inst_0b0b0b0b 2h00m 1.0 MiB 0 B 1
3.0 MiB of 40.0 GiB in use`
	squeeze := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	if code != exitOK || squeeze(out) != squeeze(want) {
		t.Errorf("code %d, got\n%s\nwant\n%s", code, out, want)
	}
	code, out, _ = f.run(t, "snapshots", "ls", "--json")
	var list sandbox.ListSnapshotsResult
	if err := json.Unmarshal([]byte(out), &list); code != exitOK || err != nil || len(list.Snapshots) != 2 {
		t.Errorf("code %d, %v, %s", code, err, out)
	}
	if code, _, errs := f.run(t, "snapshot", "rm", "1"); code != exitFailed || !strings.Contains(errs, "snap_11111111 or snap_12222222") {
		t.Errorf("code %d, %q", code, errs)
	}
	if code, _, errs := f.run(t, "snapshot", "rm", "7"); code != exitFailed || !strings.Contains(errs, "no snapshot") {
		t.Errorf("code %d, %q", code, errs)
	}
	code, out, errs := f.run(t, "snapshot", "rm", "12", "snap_11")
	if code != exitFailed || out != "removed snap_11111111\n" || !strings.Contains(errs, "others need it") || len(f.snapshots) != 1 {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
	code, out, _ = f.run(t, "snapshot", "rm", "--json", "12")
	if code != exitFailed || !strings.Contains(out, `"status": "failed"`) || !strings.Contains(out, "INVALID_ARGUMENT") {
		t.Errorf("code %d, %q", code, out)
	}
	f.snapshots = nil
	if code, out, errs := f.run(t, "snapshot", "list"); code != exitOK || out != "" || !strings.Contains(errs, "no snapshots") {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
}
