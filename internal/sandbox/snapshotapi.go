package sandbox

import "sandboxforge/internal/fault"

// The requests and results of the snapshot tools, as clients see them; see the
// rules in api.go.

// SnapshotInstanceRequest saves an instance that goes on.
type SnapshotInstanceRequest struct {
	InstanceID  string `json:"instance_id" jsonschema:"The running instance to save."`
	Name        string `json:"name,omitempty" jsonschema:"A short name for people, for example before-migration. Need not be unique."`
	Description string `json:"description,omitempty" jsonschema:"What state this is, for whoever finds it later."`
	RequestID   string `json:"request_id,omitempty" jsonschema:"Any unique string. Repeating a call with the same request_id returns the first call's snapshot instead of making a second one."`
}

// Snapshot is a saved state of an instance.
type Snapshot struct {
	SnapshotID     string   `json:"snapshot_id"`
	Kind           string   `json:"kind"`   // snapshot, or fork: kept for its children alone
	Status         string   `json:"status"` // creating, ready, deleting
	Name           string   `json:"name"`
	Description    string   `json:"description"`
	InstanceID     string   `json:"instance_id"` // of which it was made
	ParentSnapshot string   `json:"parent_snapshot,omitempty"`
	Children       []string `json:"children"` // instances that began in it and exist
	WorkspaceRoot  string   `json:"workspace_root"`
	WorkspaceID    string   `json:"workspace_id"`
	Backend        string   `json:"backend"`
	Accelerator    string   `json:"accelerator"`
	CreatedAt      string   `json:"created_at"`
	PauseMS        float64  `json:"pause_ms"` // how long the source stood still
	MemoryBytes    int64    `json:"memory_bytes"`
	DiskBytes      int64    `json:"disk_bytes"`
	CPUs           int      `json:"cpus"`
	MemoryMiB      int64    `json:"memory_mib"`
	RunningTasks   int      `json:"running_tasks"` // of the source when it was saved
}

// SnapshotInstanceResult is the new snapshot.
type SnapshotInstanceResult struct {
	Snapshot
	TimingsMS map[string]int64 `json:"timings_ms"`
}

// ListSnapshotsRequest asks for the snapshots there are.
type ListSnapshotsRequest struct {
	InstanceID string `json:"instance_id,omitempty" jsonschema:"Only snapshots that were made of this instance."`
}

// ListSnapshotsResult is newest first.
type ListSnapshotsResult struct {
	Snapshots  []Snapshot `json:"snapshots"`
	TotalBytes int64      `json:"total_bytes"` // of all snapshots, also of those not listed
	CapBytes   int64      `json:"cap_bytes"`   // beyond it no new one is made
}

// DeleteSnapshotRequest removes a snapshot.
type DeleteSnapshotRequest struct {
	SnapshotID string `json:"snapshot_id" jsonschema:"The snapshot to delete."`
}

// DeleteSnapshotResult confirms it.
type DeleteSnapshotResult struct {
	SnapshotID string `json:"snapshot_id"`
	Status     string `json:"status"` // deleted
	// DiskKept: the disk of another instance or snapshot builds on this one's,
	// which goes with the last of them.
	DiskKept bool `json:"disk_kept"`
}

// RestoreInstanceRequest makes an instance that begins in a snapshot. The
// result is that of create_instance.
type RestoreInstanceRequest struct {
	SnapshotID string   `json:"snapshot_id" jsonschema:"The snapshot in which the new instance begins."`
	TTLMinutes *float64 `json:"ttl_minutes,omitempty" jsonschema:"Minutes until the new VM is destroyed automatically. Default DEFAULT_TTL_MINUTES, at most MAX_TTL_MINUTES."`
	RequestID  string   `json:"request_id,omitempty" jsonschema:"Any unique string. Repeating a call with the same request_id returns the first call's instance instead of making a second one."`
}

// ForkInstanceRequest makes copies of an instance that goes on.
type ForkInstanceRequest struct {
	InstanceID string   `json:"instance_id" jsonschema:"The running instance to copy."`
	Count      *int     `json:"count,omitempty" jsonschema:"How many copies, 1 to 8, default 1. Each counts against MAX_INSTANCES: if not all fit, none is made."`
	TTLMinutes *float64 `json:"ttl_minutes,omitempty" jsonschema:"Minutes until the copies are destroyed automatically. Default DEFAULT_TTL_MINUTES, at most MAX_TTL_MINUTES."`
	RequestID  string   `json:"request_id,omitempty" jsonschema:"Any unique string. Repeating a call with the same request_id returns the first call's copies instead of making more."`
}

// ForkInstanceResult lists the copies.
type ForkInstanceResult struct {
	InstanceID   string           `json:"instance_id"` // of the source
	SnapshotID   string           `json:"snapshot_id"` // in which the children began; goes with the last of them
	PauseMS      float64          `json:"pause_ms"`    // how long the source stood still
	Status       string           `json:"status"`      // ok, or partial: some children did not come up
	Created      int              `json:"created"`
	Failed       int              `json:"failed"`
	Children     []ForkChild      `json:"children"`
	RunningTasks int              `json:"running_tasks"` // of the source when it was saved
	TimingsMS    map[string]int64 `json:"timings_ms"`
	Warnings     []string         `json:"warnings,omitempty"`
}

// ForkChild is one copy, or why there is none.
type ForkChild struct {
	InstanceID string                `json:"instance_id"`
	Instance   *CreateInstanceResult `json:"instance,omitempty"`
	Error      *ToolError            `json:"error,omitempty"`
}

// ToolError is a fault within a result that is otherwise good.
type ToolError struct {
	ErrorCode string         `json:"error_code"`
	Message   string         `json:"message"`
	Details   map[string]any `json:"details"`
}

func toolError(err error) *ToolError {
	f := fault.From(err)
	return &ToolError{string(f.Code), f.Error(), f.DetailMap()}
}
