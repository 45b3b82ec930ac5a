package mcpserver

import (
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"

	"sandboxforge/internal/sandbox"
)

func size(n int64) string { return humanize.IBytes(uint64(max(0, n))) }

func textSnapshot(r *sandbox.SnapshotInstanceResult) string {
	return fmt.Sprintf("Snapshot %s of %s is %s (%s of memory, %s of disk on the host). The instance stood still for %.0f ms and goes on.",
		r.SnapshotID, r.InstanceID, r.Status, size(r.MemoryBytes), size(r.DiskBytes), r.PauseMS)
}

func textSnapshots(r *sandbox.ListSnapshotsResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d snapshot(s); %s of %s in use.", len(r.Snapshots), size(r.TotalBytes), size(r.CapBytes))
	for _, s := range r.Snapshots {
		fmt.Fprintf(&b, "\n%s (%s, %s) of %s at %s, %s", s.SnapshotID, s.Kind, s.Status, s.InstanceID, s.CreatedAt, size(s.MemoryBytes+s.DiskBytes))
		if s.Name != "" {
			b.WriteString(": " + s.Name)
		}
		if len(s.Children) > 0 {
			b.WriteString("; children " + strings.Join(s.Children, ", "))
		}
	}
	return b.String()
}

func textDeleteSnapshot(r *sandbox.DeleteSnapshotResult) string {
	s := fmt.Sprintf("Snapshot %s is deleted.", r.SnapshotID)
	if r.DiskKept {
		s += " Its disk stays as long as others build on it."
	}
	return s
}

func textFork(r *sandbox.ForkInstanceResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d children of %s are running; it stood still for %.0f ms and goes on.", r.Created, r.Created+r.Failed, r.InstanceID, r.PauseMS)
	for _, c := range r.Children {
		switch {
		case c.Instance != nil:
			fmt.Fprintf(&b, "\n%s is %s until %s", c.InstanceID, c.Instance.Status, c.Instance.ExpiresAt)
		case c.Error != nil:
			fmt.Fprintf(&b, "\n%s did not come up: %s: %s", c.InstanceID, c.Error.ErrorCode, c.Error.Message)
		}
	}
	warnings(&b, r.Warnings)
	return b.String()
}
