package fault

// Code is an error_code of the tool contract. Clients switch on these strings:
// a code is never renamed or removed.
type Code string

// The codes that the earlier version had.
const (
	BackendUnavailable          Code = "BACKEND_UNAVAILABLE"
	BackendCommandFailed        Code = "BACKEND_COMMAND_FAILED"
	WorkspaceConfigInvalid      Code = "WORKSPACE_CONFIG_INVALID"
	WorkspaceBindingRequired    Code = "WORKSPACE_BINDING_REQUIRED"
	WorkspaceBootstrapFailed    Code = "WORKSPACE_BOOTSTRAP_FAILED"
	WorkspaceEnvInjectionFailed Code = "WORKSPACE_ENV_INJECTION_FAILED"
	TTLInvalid                  Code = "TTL_INVALID"
	InstanceLimitExceeded       Code = "INSTANCE_LIMIT_EXCEEDED"
	InstanceNotFound            Code = "INSTANCE_NOT_FOUND"
	InstanceTerminal            Code = "INSTANCE_TERMINAL"
	InsufficientHostResources   Code = "INSUFFICIENT_HOST_RESOURCES"
	InsufficientDisk            Code = "INSUFFICIENT_DISK"
	RuntimeNotReady             Code = "RUNTIME_NOT_READY"
	DockerCommandFailed         Code = "DOCKER_COMMAND_FAILED"
	ContainerNotFound           Code = "CONTAINER_NOT_FOUND"
	ServiceNotReady             Code = "SERVICE_NOT_READY"
	PrebuiltImageInvalid        Code = "PREBUILT_IMAGE_INVALID"
	TaskNotFound                Code = "TASK_NOT_FOUND"
	TaskAlreadyFinished         Code = "TASK_ALREADY_FINISHED"
)

// The codes that are new.
const (
	InvalidArgument      Code = "INVALID_ARGUMENT"
	PathNotAllowed       Code = "PATH_NOT_ALLOWED"
	CommandTimedOut      Code = "COMMAND_TIMED_OUT"
	Cancelled            Code = "CANCELLED"
	OutcomeUnknown       Code = "OUTCOME_UNKNOWN"
	SyncConflict         Code = "SYNC_CONFLICT"
	UnsupportedByBackend Code = "UNSUPPORTED_BY_BACKEND"
	ImageNotFound        Code = "IMAGE_NOT_FOUND"
	InstanceLost         Code = "INSTANCE_LOST"
	SnapshotNotFound     Code = "SNAPSHOT_NOT_FOUND"
	Internal             Code = "INTERNAL"
)

// Codes lists every code, for the documentation and the contract test.
func Codes() []Code {
	return []Code{
		BackendUnavailable, BackendCommandFailed, WorkspaceConfigInvalid, WorkspaceBindingRequired,
		WorkspaceBootstrapFailed, WorkspaceEnvInjectionFailed, TTLInvalid, InstanceLimitExceeded,
		InstanceNotFound, InstanceTerminal, InsufficientHostResources, InsufficientDisk, RuntimeNotReady,
		DockerCommandFailed, ContainerNotFound, ServiceNotReady, PrebuiltImageInvalid, TaskNotFound,
		TaskAlreadyFinished, InvalidArgument, PathNotAllowed, CommandTimedOut, Cancelled, OutcomeUnknown,
		SyncConflict, UnsupportedByBackend, ImageNotFound, InstanceLost,
		SnapshotNotFound, Internal,
	}
}

// defaultSteps is the remedy for faults whose maker knew none.
func (c Code) defaultSteps() []string {
	switch c {
	case InstanceNotFound, InstanceTerminal, InstanceLost:
		return []string{"call list_instances to see the instances there are, or create_instance for a new one"}
	case SnapshotNotFound:
		return []string{"call list_snapshots to see the snapshots there are"}
	case TaskNotFound, TaskAlreadyFinished:
		return []string{"call list_tasks to see the tasks of an instance"}
	case OutcomeUnknown:
		return []string{"repeat the call with the same request_id, or look at the state it would have changed"}
	case Cancelled:
		return []string{"repeat the call if its result is still wanted"}
	case BackendUnavailable, ImageNotFound:
		return []string{"run `sandboxforge doctor` on the host"}
	case InsufficientDisk:
		return []string{"free space on the host's disk: destroy_instance and delete_snapshot what is no longer needed", "repeat the call"}
	case InsufficientHostResources:
		return []string{"free memory on the host, or destroy_instance what is no longer needed", "repeat the call"}
	case Internal, BackendCommandFailed:
		return []string{"run `sandboxforge doctor` on the host and read the server's log on stderr"}
	default:
		return []string{"correct what the message names and repeat the call"}
	}
}
