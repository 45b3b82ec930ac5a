package mcpserver

import (
	"context"

	"sandboxforge/internal/sandbox"
)

// Service is what the tools call; *sandbox.Service in the real server. Every
// method may be called concurrently, ends soon after its context does, and
// reports faults as *fault.Error.
type Service interface {
	ValidateWorkspaceConfig(context.Context, sandbox.ValidateWorkspaceConfigRequest) (*sandbox.ValidateWorkspaceConfigResult, error)
	CreateInstance(context.Context, sandbox.CreateInstanceRequest) (*sandbox.CreateInstanceResult, error)
	ListInstances(context.Context, sandbox.ListInstancesRequest) (*sandbox.ListInstancesResult, error)
	ExtendInstanceTTL(context.Context, sandbox.ExtendInstanceTTLRequest) (*sandbox.ExtendInstanceTTLResult, error)
	DestroyInstance(context.Context, sandbox.DestroyInstanceRequest) (*sandbox.DestroyInstanceResult, error)
	PrepareWorkspace(context.Context, sandbox.PrepareWorkspaceRequest) (*sandbox.PrepareWorkspaceResult, error)
	RunCommand(context.Context, sandbox.RunCommandRequest) (*sandbox.RunCommandResult, error)
	StartBackgroundTask(context.Context, sandbox.StartBackgroundTaskRequest) (*sandbox.StartBackgroundTaskResult, error)
	GetTaskStatus(context.Context, sandbox.GetTaskStatusRequest) (*sandbox.Task, error)
	GetTaskLogs(context.Context, sandbox.GetTaskLogsRequest) (*sandbox.GetTaskLogsResult, error)
	StopTask(context.Context, sandbox.StopTaskRequest) (*sandbox.StopTaskResult, error)
	ListTasks(context.Context, sandbox.ListTasksRequest) (*sandbox.ListTasksResult, error)
	CopyToInstance(context.Context, sandbox.CopyRequest) (*sandbox.CopyResult, error)
	CopyFromInstance(context.Context, sandbox.CopyRequest) (*sandbox.CopyResult, error)
	SyncWorkspaceToInstance(context.Context, sandbox.SyncToInstanceRequest) (*sandbox.SyncToInstanceResult, error)
	SyncInstanceToWorkspace(context.Context, sandbox.SyncFromInstanceRequest) (*sandbox.SyncFromInstanceResult, error)
	SnapshotInstance(context.Context, sandbox.SnapshotInstanceRequest) (*sandbox.SnapshotInstanceResult, error)
	ListSnapshots(context.Context, sandbox.ListSnapshotsRequest) (*sandbox.ListSnapshotsResult, error)
	DeleteSnapshot(context.Context, sandbox.DeleteSnapshotRequest) (*sandbox.DeleteSnapshotResult, error)
	RestoreInstance(context.Context, sandbox.RestoreInstanceRequest) (*sandbox.CreateInstanceResult, error)
	ForkInstance(context.Context, sandbox.ForkInstanceRequest) (*sandbox.ForkInstanceResult, error)
	DockerBuild(context.Context, sandbox.DockerBuildRequest) (*sandbox.DockerBuildResult, error)
	ValidateImage(context.Context, sandbox.ValidateImageRequest) (*sandbox.ValidateImageResult, error)
	DockerRun(context.Context, sandbox.DockerRunRequest) (*sandbox.DockerRunResult, error)
	DockerExec(context.Context, sandbox.DockerExecRequest) (*sandbox.DockerExecResult, error)
	DockerLogs(context.Context, sandbox.DockerLogsRequest) (*sandbox.DockerLogsResult, error)
	DockerCompose(context.Context, sandbox.DockerComposeRequest) (*sandbox.DockerComposeResult, error)
	DockerPS(context.Context, sandbox.DockerPSRequest) (*sandbox.DockerPSResult, error)
	DockerImages(context.Context, sandbox.DockerImagesRequest) (*sandbox.DockerImagesResult, error)
	DockerCleanup(context.Context, sandbox.DockerCleanupRequest) (*sandbox.DockerCleanupResult, error)
	CollectArtifacts(context.Context, sandbox.CollectArtifactsRequest) (*sandbox.CollectArtifactsResult, error)
}
