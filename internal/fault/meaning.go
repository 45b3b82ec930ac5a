package fault

// Meaning says in a sentence each what usually led to a fault of the code, and
// what helps. A fault itself knows more: this is for the documentation.
func (c Code) Meaning() (cause, remedy string) {
	m := meanings[c]
	return m[0], m[1]
}

var meanings = map[Code][2]string{
	BackendUnavailable:          {"No hypervisor can be used on the host", "`sandboxforge doctor` on the host"},
	BackendCommandFailed:        {"The hypervisor refused or failed", "read the cause; `sandboxforge doctor` on the host"},
	WorkspaceConfigInvalid:      {"A configuration file or overrides have errors", "mend what `details` names; validate_workspace_config shows all of it"},
	WorkspaceBindingRequired:    {"The instance was made without a workspace", "create_instance with workspace_root"},
	WorkspaceBootstrapFailed:    {"The VM runs, its workspace could not be prepared", "mend the cause, then prepare_workspace with `details.instance_id`, or destroy_instance"},
	WorkspaceEnvInjectionFailed: {"The services' variables could not be written into a file of the workspace", "mend the file, or leave inject_env_to out"},
	TTLInvalid:                  {"ttl_minutes is not a positive number", "pass one"},
	InstanceLimitExceeded:       {"MAX_INSTANCES instances exist", "destroy_instance one that is not needed"},
	InstanceNotFound:            {"No instance has that id", "list_instances"},
	InstanceTerminal:            {"The instance has ended: destroyed or expired", "create_instance"},
	InsufficientHostResources:   {"The host has too little memory, disk or processors for the VM", "`details.suggested_vm`, or destroy_instance what is not needed"},
	InsufficientDisk:            {"A disk is full, the host's or the VM's", "free space; for a VM docker_cleanup, or a larger vm.disk_gib"},
	RuntimeNotReady:             {"The VM or its Docker does not answer yet", "wait and repeat; prepare_workspace with wait_for_ready"},
	DockerCommandFailed:         {"Docker could not do what was asked", "read `details.stderr`"},
	ContainerNotFound:           {"No container has that name", "docker_ps with all=true"},
	ServiceNotReady:             {"A configured service could not be made, or did not answer in time", "read the cause and `details.last_log_lines`; prepare_workspace again"},
	PrebuiltImageInvalid:        {"The prebuilt image does not stand for the workspace", "docker_build, or change build.prebuilt"},
	TaskNotFound:                {"No task has that id", "list_tasks"},
	TaskAlreadyFinished:         {"The task has ended", "get_task_status"},
	InvalidArgument:             {"A parameter is missing or has a value that is not allowed", "correct what the message names"},
	PathNotAllowed:              {"A path of the host lies outside what tools may touch, or is a symlink", "use one in the workspace; the operator's SANDBOX_ALLOWED_ROOTS adds others"},
	CommandTimedOut:             {"The command did not end in time and was killed", "a larger timeout_seconds, or start_background_task"},
	Cancelled:                   {"The caller cancelled the call, or left", "repeat it if its result is wanted"},
	OutcomeUnknown:              {"The connection broke before the answer came", "repeat with the same request_id, or look at the state first"},
	SyncConflict:                {"A file changed on both sides", "decide with on_conflict"},
	UnsupportedByBackend:        {"This backend cannot do that", "see `capabilities` in create_instance's result"},
	ImageNotFound:               {"There is no such guest image", "`sandboxforge image build` on the host"},
	InstanceLost:                {"The VM ended by itself, or nothing of it answers", "create_instance"},
	SnapshotNotFound:            {"No snapshot has that id", "list_snapshots"},
	Internal:                    {"Something that should not happen", "the server's log on stderr"},
}
