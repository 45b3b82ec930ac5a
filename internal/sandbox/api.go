package sandbox

import (
	"sandboxforge/internal/backend"
)

// The requests and results of the tools, as clients see them: the JSON names
// are the tool contract and are never renamed. A pointer field without
// omitempty is null when there is no value; optional parameters are pointers
// where zero is a meaningful value.

// CreateInstanceRequest asks for a new VM.
type CreateInstanceRequest struct {
	WorkspaceRoot string         `json:"workspace_root" jsonschema:"Absolute path of the project directory on the host that this VM is for. Not / and not a home directory itself. Its .sandboxforge.toml is read (as untrusted input); nothing in it is executed."`
	TTLMinutes    *float64       `json:"ttl_minutes,omitempty" jsonschema:"Minutes until the VM is destroyed automatically. Default DEFAULT_TTL_MINUTES, at most MAX_TTL_MINUTES. Extend later with extend_instance_ttl."`
	AutoBootstrap *bool          `json:"auto_bootstrap,omitempty" jsonschema:"Default true: also do what prepare_workspace does (wait for Docker, sync the workspace in). If that fails the VM is kept and the error carries instance_id."`
	WaitForReady  bool           `json:"wait_for_ready,omitempty" jsonschema:"Default false. True: also wait until Docker really answers before returning; a Docker that does not is then an error."`
	Overrides     map[string]any `json:"overrides,omitempty" jsonschema:"Configuration for this instance only, the same tree as .sandboxforge.toml, for example {\"vm\": {\"cpus\": 2, \"memory_gib\": 4}}. Operator-only keys are refused."`
	RequestID     string         `json:"request_id,omitempty" jsonschema:"Any unique string. Repeating a call with the same request_id returns the first call's result instead of making a second VM: use it to retry after a timeout."`
}

// CreateInstanceResult describes the new instance.
type CreateInstanceResult struct {
	InstanceID    string                  `json:"instance_id"`
	Backend       string                  `json:"backend"`
	Status        string                  `json:"status"`
	CreatedAt     string                  `json:"created_at"`
	ExpiresAt     string                  `json:"expires_at"`
	SSHPort       *int                    `json:"ssh_port"`
	WorkspaceRoot string                  `json:"workspace_root"`
	WorkspaceID   string                  `json:"workspace_id"`
	AutoBootstrap bool                    `json:"auto_bootstrap"`
	WaitForReady  bool                    `json:"wait_for_ready"`
	Bootstrap     *PrepareWorkspaceResult `json:"bootstrap,omitempty"`
	Capabilities  backend.Capabilities    `json:"capabilities"`
	Accelerator   string                  `json:"accelerator"`
	StartKind     string                  `json:"start_kind"`
	TimingsMS     map[string]int64        `json:"timings_ms"`
	Warnings      []string                `json:"warnings,omitempty"`

	ParentSnapshot string `json:"parent_snapshot,omitempty"` // in which it began
	ParentInstance string `json:"parent_instance,omitempty"` // of which that was made
}

// ListInstancesRequest asks for the instances there are.
type ListInstancesRequest struct {
	IncludeExpired  bool `json:"include_expired,omitempty" jsonschema:"Default false: only instances that may still have a VM. True: also destroyed and expired ones."`
	IncludeInternal bool `json:"include_internal,omitempty" jsonschema:"Default false. True: also VMs of SandboxForge's own: those that wait to become an instance (kind pool) and those that are made into a template (kind template)."`
}

// Instance is one row of list_instances.
type Instance struct {
	InstanceID          string               `json:"instance_id"`
	Kind                string               `json:"kind"` // instance, pool or template
	BackendName         string               `json:"backend_name"`
	ProfileName         string               `json:"profile_name"`
	WorkspaceRoot       string               `json:"workspace_root"`
	WorkspaceID         string               `json:"workspace_id"`
	Status              string               `json:"status"`
	CreatedAt           string               `json:"created_at"`
	ExpiresAt           string               `json:"expires_at"`
	LastUsedAt          *string              `json:"last_used_at"`
	OwnerSession        string               `json:"owner_session"`
	SSHPort             *int                 `json:"ssh_port"`
	BackendInstanceName string               `json:"backend_instance_name"`
	RuntimeName         *string              `json:"runtime_name"`
	RuntimeReady        bool                 `json:"runtime_ready"`
	DockerCommand       *string              `json:"docker_command"`
	LiveExists          bool                 `json:"live_exists"`
	LiveStatus          *string              `json:"live_status"`
	ReconciliationDrift *string              `json:"reconciliation_drift"`
	Accelerator         string               `json:"accelerator,omitempty"`
	StartKind           string               `json:"start_kind,omitempty"`
	EndReason           string               `json:"end_reason,omitempty"`
	Capabilities        backend.Capabilities `json:"capabilities"`
	MemoryMiB           int64                `json:"memory_mib"`
	// MemoryPSSBytes is what the VM really costs: the hypervisor and the
	// supervisor, with what they share with others counted in proportion. 0
	// where the system does not tell.
	MemoryPSSBytes int64  `json:"memory_pss_bytes"`
	DiskUsedBytes  int64  `json:"disk_used_bytes"` // that are this VM's alone
	ParentSnapshot string `json:"parent_snapshot,omitempty"`
	ParentInstance string `json:"parent_instance,omitempty"`
}

// ListInstancesResult is newest first.
type ListInstancesResult struct {
	Instances           []Instance `json:"instances"`
	Backend             string     `json:"backend"`
	BackendAvailable    bool       `json:"backend_available"`
	BackendVersion      string     `json:"backend_version,omitempty"`
	BackendError        string     `json:"backend_error,omitempty"`
	ReconciliationError string     `json:"reconciliation_error,omitempty"`
	SnapshotCount       int        `json:"snapshot_count"` // list_snapshots names them
	SnapshotBytes       int64      `json:"snapshot_bytes"`
	TemplateCount       int        `json:"template_count"` // that new VMs begin in
	TemplateBytes       int64      `json:"template_bytes"` // on the disk, shared by all VMs
}

// DestroyInstanceRequest ends an instance.
type DestroyInstanceRequest struct {
	InstanceID string `json:"instance_id" jsonschema:"The instance to destroy."`
	Force      bool   `json:"force,omitempty" jsonschema:"Default false: the guest may shut down for a few seconds. True: the VM is killed at once."`
}

// DestroyInstanceResult confirms that the VM is gone.
type DestroyInstanceResult struct {
	InstanceID string `json:"instance_id"`
	Backend    string `json:"backend"`
	Status     string `json:"status"`
}

// ExtendInstanceTTLRequest moves an instance's expiry.
type ExtendInstanceTTLRequest struct {
	InstanceID string  `json:"instance_id" jsonschema:"The instance to keep longer."`
	TTLMinutes float64 `json:"ttl_minutes" jsonschema:"Minutes to add to the current expiry. The new expiry is never later than MAX_TTL_MINUTES from now; the result says what was really added."`
}

// ExtendInstanceTTLResult says what was really added.
type ExtendInstanceTTLResult struct {
	InstanceID         string  `json:"instance_id"`
	ExpiresAt          string  `json:"expires_at"`
	TTLExtendedMinutes float64 `json:"ttl_extended_minutes"`
}

// ValidateWorkspaceConfigRequest asks what a workspace's configuration means.
type ValidateWorkspaceConfigRequest struct {
	WorkspaceRoot string         `json:"workspace_root" jsonschema:"Absolute path of the project directory on the host."`
	Overrides     map[string]any `json:"overrides,omitempty" jsonschema:"Configuration tree that create_instance would be given as overrides."`
}

// ValidateWorkspaceConfigResult is the whole resolved configuration.
type ValidateWorkspaceConfigResult struct {
	WorkspaceRoot string         `json:"workspace_root"`
	WorkspaceID   string         `json:"workspace_id"`
	Sources       []string       `json:"sources"`
	Config        map[string]any `json:"config"`
	Valid         bool           `json:"valid"`
	Diagnostics   []Diagnostic   `json:"diagnostics"`
}

// Diagnostic is one finding in a configuration.
type Diagnostic struct {
	Severity string `json:"severity"` // error, warning or info
	File     string `json:"file"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Key      string `json:"key"`
	Message  string `json:"message"`
	Allowed  string `json:"allowed,omitempty"`
}

// PrepareWorkspaceRequest makes an instance ready for work.
type PrepareWorkspaceRequest struct {
	InstanceID      string `json:"instance_id" jsonschema:"The instance to prepare."`
	IncludeServices *bool  `json:"include_services,omitempty" jsonschema:"Default true: also start the services that the workspace's configuration enables (infra.mysql, infra.redis, infra.postgres). False: leave them as they are."`
	WaitForReady    bool   `json:"wait_for_ready,omitempty" jsonschema:"Default false: wait a while for Docker and the services, and warn about what does not answer. True: wait longer, and fail if something does not."`
	SyncWorkspace   *bool  `json:"sync_workspace,omitempty" jsonschema:"Default true: copy the workspace into the VM first (incremental)."`

	ServiceTimeoutSeconds *float64 `json:"service_timeout_seconds,omitempty" jsonschema:"How long the services may take to answer, all together. Default 90, and with wait_for_ready as much longer as a server is visibly still being set up."`
}

// PrepareWorkspaceResult says what the instance now offers.
type PrepareWorkspaceResult struct {
	InstanceID       string                      `json:"instance_id"`
	WorkspaceRoot    string                      `json:"workspace_root"`
	WorkspaceID      string                      `json:"workspace_id"`
	Runtime          string                      `json:"runtime"`
	RuntimeReady     bool                        `json:"runtime_ready"`
	DockerCommand    string                      `json:"docker_command"`
	Network          NetworkResult               `json:"network"`
	IncludeServices  bool                        `json:"include_services"`
	Services         map[string]ServiceResult    `json:"services"`
	WaitForReady     bool                        `json:"wait_for_ready"`
	ServiceReadiness map[string]ServiceReadiness `json:"service_readiness"`
	ConnectionEnv    map[string]string           `json:"connection_env"`
	EnvInjections    []EnvInjection              `json:"env_injections"`
	WorkspacePaths   WorkspacePaths              `json:"workspace_paths"`
	Sync             *SyncToInstanceResult       `json:"sync,omitempty"`
	TimingsMS        map[string]int64            `json:"timings_ms"`
	Warnings         []string                    `json:"warnings,omitempty"`
}

// NetworkResult describes the instance's Docker network.
type NetworkResult struct {
	Name   string `json:"name"`
	Status string `json:"status"` // existing, created or skipped
}

// ServiceResult describes one service container.
type ServiceResult struct {
	Status    string `json:"status"` // running, started or created
	Container string `json:"container"`
	Image     string `json:"image"`
	Host      string `json:"host"`
	Port      int    `json:"port"`
	Database  string `json:"database,omitempty"`
}

// ServiceReadiness says whether a service answered a real query.
type ServiceReadiness struct {
	Ready    bool `json:"ready"`
	Attempts int  `json:"attempts"`
}

// EnvInjection names a file that connection variables were written to.
type EnvInjection struct {
	Path string   `json:"path"`
	Keys []string `json:"keys"`
}

// WorkspacePaths are the places in the guest where a workspace can live.
type WorkspacePaths struct {
	Preferred string   `json:"preferred"`
	Writable  []string `json:"writable"`
}

// RunCommandRequest runs a command and waits for it.
type RunCommandRequest struct {
	InstanceID     string            `json:"instance_id" jsonschema:"The instance to run in."`
	Command        string            `json:"command" jsonschema:"A shell command line; it runs with sh -c inside the VM, never on the host."`
	TimeoutSeconds *float64          `json:"timeout_seconds,omitempty" jsonschema:"Default 600. When it passes, the whole process tree is killed and the error COMMAND_TIMED_OUT carries the partial output. For longer work use start_background_task."`
	Cwd            string            `json:"cwd,omitempty" jsonschema:"Working directory in the VM. Default: the synced workspace if there is one, else the user's home."`
	Env            map[string]string `json:"env,omitempty" jsonschema:"Extra environment variables."`
	Stdin          *string           `json:"stdin,omitempty" jsonschema:"Text given to the command on standard input. Default: empty input."`
	User           string            `json:"user,omitempty" jsonschema:"Guest user, default sandbox (passwordless sudo, member of docker); root is possible."`
	MaxOutputBytes *int64            `json:"max_output_bytes,omitempty" jsonschema:"Bytes of each stream that are returned, default 65536; head and tail are kept, the middle is left out. The full output stays readable with get_task_logs and the task_id of the result."`
	RequestID      string            `json:"request_id,omitempty" jsonschema:"Any unique string. Repeating a call with the same request_id returns (or waits for) the first call's result instead of running the command again."`
}

// CommandResult is what a command did. It is embedded by every tool that runs
// one.
type CommandResult struct {
	Command         string `json:"command"`
	ExitCode        int    `json:"exit_code"`
	Stdout          string `json:"stdout"`
	Stderr          string `json:"stderr"`
	DurationMS      int64  `json:"duration_ms"`
	StdoutTruncated bool   `json:"stdout_truncated"`
	StderrTruncated bool   `json:"stderr_truncated"`
	StdoutBytes     int64  `json:"stdout_bytes"`
	StderrBytes     int64  `json:"stderr_bytes"`
	TaskID          string `json:"task_id"`
	Signal          string `json:"signal,omitempty"`
	NotUTF8         bool   `json:"not_utf8,omitempty"` // bytes that are no UTF-8 were replaced
}

// RunCommandResult is the end of a command; a non-zero exit is a normal one.
type RunCommandResult struct {
	InstanceID string `json:"instance_id"`
	CommandResult
}

// StartBackgroundTaskRequest starts a command and returns at once.
type StartBackgroundTaskRequest struct {
	InstanceID string            `json:"instance_id" jsonschema:"The instance to run in."`
	Command    string            `json:"command" jsonschema:"A shell command line; it runs with sh -c inside the VM until it ends, stop_task stops it, or the instance ends."`
	Cwd        string            `json:"cwd,omitempty" jsonschema:"Working directory in the VM. Default: the synced workspace if there is one, else the user's home."`
	Env        map[string]string `json:"env,omitempty" jsonschema:"Extra environment variables."`
	RequestID  string            `json:"request_id,omitempty" jsonschema:"Any unique string. Repeating a call with the same request_id returns the first call's task instead of starting a second one."`
}

// StartBackgroundTaskResult names the new task.
type StartBackgroundTaskResult struct {
	TaskID     string `json:"task_id"`
	InstanceID string `json:"instance_id"`
	Status     string `json:"status"`
	PID        int    `json:"pid"`
	LogPath    string `json:"log_path"`
}

// GetTaskStatusRequest asks how a task is.
type GetTaskStatusRequest struct {
	TaskID      string  `json:"task_id" jsonschema:"A task_id from start_background_task or run_command."`
	WaitSeconds float64 `json:"wait_seconds,omitempty" jsonschema:"Default 0. Wait so long for the task to end before answering; returns earlier when it ends."`
}

// Task is the state of a task.
type Task struct {
	TaskID       string  `json:"task_id"`
	InstanceID   string  `json:"instance_id"`
	Kind         string  `json:"kind"`
	Command      string  `json:"command"`
	Status       string  `json:"status"`
	PID          *int    `json:"pid"`
	CreatedAt    string  `json:"created_at"`
	StartedAt    *string `json:"started_at"`
	FinishedAt   *string `json:"finished_at"`
	ExitCode     *int    `json:"exit_code"`
	Signal       *string `json:"signal,omitempty"`
	ErrorMessage *string `json:"error_message"`
	LogPath      string  `json:"log_path"`
}

// GetTaskLogsRequest reads a task's output.
type GetTaskLogsRequest struct {
	TaskID   string `json:"task_id" jsonschema:"A task_id from start_background_task or run_command."`
	Tail     *int   `json:"tail,omitempty" jsonschema:"Number of last lines to return, default 500. Ignored when offset is given."`
	Stream   string `json:"stream,omitempty" jsonschema:"stdout, stderr or both (default): with both, each stream's text follows a header line."`
	Offset   *int64 `json:"offset,omitempty" jsonschema:"Byte offset to read from; pass the next_offset of the last answer to go on. Needs stream stdout or stderr."`
	MaxBytes *int64 `json:"max_bytes,omitempty" jsonschema:"Most bytes to return, default 65536."`
}

// GetTaskLogsResult is a piece of a task's output. NextOffset goes on in the
// one stream that was asked for; with both it is 0, because each stream has
// offsets of its own.
type GetTaskLogsResult struct {
	TaskID       string `json:"task_id"`
	InstanceID   string `json:"instance_id"`
	Status       string `json:"status"`
	Logs         string `json:"logs"`
	Tail         int    `json:"tail"`
	Stream       string `json:"stream"`
	NextOffset   int64  `json:"next_offset"`
	TotalBytes   int64  `json:"total_bytes"`
	DroppedBytes int64  `json:"dropped_bytes"`
}

// StopTaskRequest stops a task.
type StopTaskRequest struct {
	TaskID string `json:"task_id" jsonschema:"The task to stop, with every process it started."`
	Force  bool   `json:"force,omitempty" jsonschema:"Default false: SIGTERM, then SIGKILL after a grace period. True: SIGKILL at once."`
}

// StopTaskResult says how the task really ended.
type StopTaskResult struct {
	TaskID     string  `json:"task_id"`
	InstanceID string  `json:"instance_id"`
	Status     string  `json:"status"`
	ExitCode   *int    `json:"exit_code"`
	Signal     *string `json:"signal"`
}

// ListTasksRequest asks for tasks.
type ListTasksRequest struct {
	InstanceID string `json:"instance_id,omitempty" jsonschema:"Only tasks of this instance."`
	Status     string `json:"status,omitempty" jsonschema:"Only tasks with this status: running, succeeded, failed or stopped."`
	Kind       string `json:"kind,omitempty" jsonschema:"background (default), command (those of run_command) or all."`
}

// ListTasksResult is newest first.
type ListTasksResult struct {
	Tasks     []Task `json:"tasks"`
	Truncated bool   `json:"truncated,omitempty"` // more matched: ask with instance_id or status
}

// CopyRequest is copy_to_instance and copy_from_instance.
type CopyRequest struct {
	InstanceID string `json:"instance_id" jsonschema:"The instance to copy to or from."`
	LocalPath  string `json:"local_path" jsonschema:"Path on the host, inside the instance's workspace or a directory that the operator allowed. Relative paths are taken from the workspace root."`
	RemotePath string `json:"remote_path" jsonschema:"Path in the VM. Relative paths are taken from the synced workspace, else the home directory."`
}

// CopyResult says what was copied.
type CopyResult struct {
	InstanceID string    `json:"instance_id"`
	LocalPath  string    `json:"local_path"`
	RemotePath string    `json:"remote_path"`
	Bytes      int64     `json:"bytes"`
	Files      int       `json:"files"`
	Refused    []Refusal `json:"refused"`
	Status     string    `json:"status"`
}

// Refusal is a path that was left alone, with the reason.
type Refusal struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Conflict is a path that changed on both sides since the last sync.
type Conflict struct {
	Path       string `json:"path"`
	Reason     string `json:"reason"`
	Host       string `json:"host"`  // changed, created, deleted or unchanged
	Guest      string `json:"guest"` // changed, created, deleted or unchanged
	Resolution string `json:"resolution,omitempty"`
}

// SyncToInstanceRequest is sync_workspace_to_instance.
type SyncToInstanceRequest struct {
	InstanceID string   `json:"instance_id" jsonschema:"The instance to sync to."`
	LocalPath  string   `json:"local_path,omitempty" jsonschema:"Directory on the host, default the workspace root."`
	RemotePath string   `json:"remote_path,omitempty" jsonschema:"Directory in the VM, default the workspace path that prepare_workspace chose (usually /workspace)."`
	Exclude    []string `json:"exclude,omitempty" jsonschema:"Further patterns in gitignore syntax, added to the configuration's list."`
}

// SyncToInstanceResult says what went in.
type SyncToInstanceResult struct {
	InstanceID     string     `json:"instance_id"`
	LocalPath      string     `json:"local_path"`
	RemotePath     string     `json:"remote_path"`
	ArchiveBytes   int64      `json:"archive_bytes"`
	Exclude        []string   `json:"exclude"`
	FilesSent      int        `json:"files_sent"`
	FilesUnchanged int        `json:"files_unchanged"`
	FilesDeleted   int        `json:"files_deleted"`
	Conflicts      []Conflict `json:"conflicts"`
	GuestChanged   []string   `json:"guest_changed"` // changed in the guest only, and kept there
	Skipped        []Refusal  `json:"skipped"`
	Notes          []string   `json:"notes"`
	Status         string     `json:"status"` // ok, conflicts, partial
}

// SyncFromInstanceRequest is sync_instance_to_workspace.
type SyncFromInstanceRequest struct {
	InstanceID string `json:"instance_id" jsonschema:"The instance to sync from."`
	RemotePath string `json:"remote_path,omitempty" jsonschema:"Directory in the VM, default the synced workspace."`
	LocalPath  string `json:"local_path,omitempty" jsonschema:"Directory on the host, default the workspace root."`
	DryRun     bool   `json:"dry_run,omitempty" jsonschema:"True: only say what would change."`
	OnConflict string `json:"on_conflict,omitempty" jsonschema:"What to do with a file that changed on both sides since the last sync: fail (default: leave it and report it), keep_host, or keep_guest (overwrites the host's file)."`
}

// SyncFromInstanceResult says what came out.
type SyncFromInstanceResult struct {
	InstanceID string     `json:"instance_id"`
	RemotePath string     `json:"remote_path"`
	LocalPath  string     `json:"local_path"`
	Created    []string   `json:"created"`
	Updated    []string   `json:"updated"`
	Deleted    []string   `json:"deleted"`
	Conflicts  []Conflict `json:"conflicts"`
	Refused    []Refusal  `json:"refused"`
	Failed     []Refusal  `json:"failed"`
	DryRun     bool       `json:"dry_run"`
	Status     string     `json:"status"`
}

// CollectArtifactsRequest takes chosen files out.
type CollectArtifactsRequest struct {
	InstanceID    string   `json:"instance_id" jsonschema:"The instance to collect from."`
	RemotePaths   []string `json:"remote_paths" jsonschema:"Files, directories or globs (** allowed) in the VM. Relative ones are taken from the synced workspace."`
	LocalDest     string   `json:"local_dest" jsonschema:"Directory on the host, made if missing. Never overwrites: a second collection goes beside the first."`
	MaxTotalBytes *int64   `json:"max_total_bytes,omitempty" jsonschema:"Stop before more than so many bytes are written, default 1 GiB."`
}

// Artifact is one collected file.
type Artifact struct {
	RemotePath string `json:"remote_path"`
	LocalPath  string `json:"local_path"`
	Bytes      int64  `json:"bytes"`
	SHA256     string `json:"sha256"`
	Mode       string `json:"mode"` // octal, like 0644
}

// ArtifactFailure is one requested path that could not be collected.
type ArtifactFailure struct {
	RemotePath string `json:"remote_path"`
	Reason     string `json:"reason"`
}

// CollectArtifactsResult lists what was collected.
type CollectArtifactsResult struct {
	InstanceID   string            `json:"instance_id"`
	LocalDest    string            `json:"local_dest"`
	Artifacts    []Artifact        `json:"artifacts"`
	Failed       []ArtifactFailure `json:"failed"`
	ManifestPath string            `json:"manifest_path"`
}
