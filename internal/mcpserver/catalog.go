package mcpserver

import (
	"slices"

	"sandboxforge/internal/fault"
)

// What many parameters have in common. A well-formed id that nobody knows and
// one that cannot be an id get the same fault, so that a client needs one
// branch.
var (
	instanceID    = rule{pattern: `^inst_[0-9a-f]{8}$`, code: fault.InstanceNotFound}
	taskID        = rule{pattern: `^task_[0-9a-f]{12}$`, code: fault.TaskNotFound}
	snapshotID    = rule{pattern: `^snap_[0-9a-f]{8}$`, code: fault.SnapshotNotFound}
	path          = rule{minLen: 1, maxLen: 4096}
	command       = rule{minLen: 1, maxLen: 128 << 10}
	requestID     = rule{minLen: 1, maxLen: 200}
	ttl           = rule{min: num(0.02), max: num(525600), code: fault.TTLInvalid}
	yes           = rule{def: true}
	no            = rule{def: false}
	guestUser     = rule{def: "sandbox", pattern: `^[a-z_][a-z0-9_-]{0,31}$`}
	taskStatuses  = []string{"running", "succeeded", "failed", "stopped"}
	errorsReading = "\n\nOn failure the result has isError and JSON {error_code, message, details}; details.next_steps says what to do."
)

// catalog is the table of tools, in the order of the documentation. A new tool
// is one more row: its data, the method of Service, and its text.
func catalog() []*tool {
	return slices.Concat(catalogInstances(), catalogBuild(), catalogDocker())
}

// catalogInstances are the tools for VMs, commands, files and saved states.
func catalogInstances() []*tool {
	return []*tool{
		row(spec{
			Name:  "validate_workspace_config",
			Title: "Check a workspace's configuration",
			Description: "Resolves the SandboxForge configuration of a workspace (built-in defaults, the operator's files, the workspace's .sandboxforge.toml, then overrides) without creating anything. " +
				"Returns the whole resolved tree with secrets masked, the files it came from, valid, and diagnostics with file, line, column, key and allowed values. An invalid configuration is a normal result with valid=false. " +
				"Use it before create_instance when a configuration is new or create_instance answered WORKSPACE_CONFIG_INVALID.",
			hints: hints{readOnly: true, idempotent: true},
			rules: rules{"workspace_root": path},
		}, Service.ValidateWorkspaceConfig, textValidate),
		row(spec{
			Name:  "create_instance",
			Title: "Create a VM",
			Description: "Creates a disposable virtual machine for a workspace directory of the host and returns its instance_id, which every other tool needs. " +
				"By default it also waits for Docker and copies the workspace in (auto_bootstrap), so that run_command works at once in the synced workspace. Takes from a second to a few minutes (a cold boot under software emulation is slow); progress is reported. " +
				"The VM is destroyed by itself at expires_at. Destroy it earlier with destroy_instance when done: the number of VMs is limited (INSTANCE_LIMIT_EXCEEDED). " +
				"If a call may have been cut off, repeat it with the same request_id. After WORKSPACE_BOOTSTRAP_FAILED the VM exists: details.instance_id names it; repair it with prepare_workspace or destroy it.",
			rules: rules{"workspace_root": path, "ttl_minutes": ttl, "auto_bootstrap": yes, "wait_for_ready": no, "request_id": requestID},
		}, Service.CreateInstance, textCreate),
		row(spec{
			Name:  "list_instances",
			Title: "List the VMs",
			Description: "Lists the instances that this machine knows, newest first, with status, expiry, workspace, whether the VM really exists (live_exists) and any difference between record and reality (reconciliation_drift), plus whether the VM backend works. " +
				"Use it to find an instance_id again and to see the state after an error with OUTCOME_UNKNOWN.",
			hints: hints{readOnly: true, idempotent: true},
			rules: rules{"include_expired": no},
		}, Service.ListInstances, textList),
		row(spec{
			Name:  "extend_instance_ttl",
			Title: "Keep a VM longer",
			Description: "Moves an instance's expiry by ttl_minutes, but never later than MAX_TTL_MINUTES from now; ttl_extended_minutes in the result says what was really added. " +
				"An instance that has ended cannot be extended (INSTANCE_TERMINAL): create a new one.",
			rules: rules{"instance_id": instanceID, "ttl_minutes": ttl},
		}, Service.ExtendInstanceTTL, textExtend),
		row(spec{
			Name:  "destroy_instance",
			Title: "Destroy a VM",
			Description: "Ends an instance: its tasks end, the VM and its disk are deleted for good. What is needed from it must be taken out first (collect_artifacts, sync_instance_to_workspace). " +
				"Destroying an instance that is already gone is a success.",
			hints: hints{destructive: true, idempotent: true},
			rules: rules{"instance_id": instanceID, "force": no},
		}, Service.DestroyInstance, textDestroy),
		row(spec{
			Name:  "prepare_workspace",
			Title: "Make a VM ready for work",
			Description: "Does on an existing instance what create_instance does with auto_bootstrap: waits for Docker, makes the instance's network, copies the workspace in (incremental), and starts the services that the workspace's configuration enables (infra.mysql, infra.redis, infra.postgres), as containers on that network. " +
				"A service is ready when it has answered a real query; one that is not yet is a warning and service_readiness.ready=false, or with wait_for_ready=true the error SERVICE_NOT_READY with the last lines of its log. A service whose image cannot be fetched or whose container cannot be made is SERVICE_NOT_READY in either case. " +
				"connection_env (DB_HOST, MYSQL_*, REDIS_*, PG*, passwords included) is how to reach them: every command and container of the instance gets it, host names work in the VM itself too, and the configuration's inject_env_to files have it in the VM's workspace, never on the host. " +
				"May be repeated at any time: it only does what is missing. The instance must have a workspace (WORKSPACE_BINDING_REQUIRED otherwise). " +
				"Returns docker_command to use in command lines, the workspace's directory in the VM (workspace_paths.preferred), services and connection_env. Reports progress.",
			hints: hints{idempotent: true, openWorld: true},
			rules: rules{"instance_id": instanceID, "include_services": yes, "wait_for_ready": no, "sync_workspace": yes,
				"service_timeout_seconds": {min: num(0.1), max: num(3600)}},
		}, Service.PrepareWorkspace, textPrepare),
		row(spec{
			Name:  "run_command",
			Title: "Run a command in a VM",
			Description: "Runs a shell command line (sh -c) inside the VM and waits for its end. Returns exit_code, stdout, stderr and duration_ms; an exit code other than 0 is a normal result, not an error. " +
				"Long output keeps head and tail (stdout_truncated, stderr_truncated; stdout_bytes, stderr_bytes are the full sizes): read the rest with get_task_logs and task_id. " +
				"After timeout_seconds, or when the call is cancelled, the whole process tree is killed (COMMAND_TIMED_OUT has the partial output in details). " +
				"For what runs longer than some minutes, or must go on (servers, watchers), use start_background_task. Reports the newest output line as progress.",
			hints: hints{destructive: true, openWorld: true},
			rules: rules{
				"instance_id": instanceID, "command": command, "request_id": requestID,
				"timeout_seconds":  {min: num(0.1), max: num(86400), def: 600},
				"max_output_bytes": {min: num(1), max: num(1 << 20), def: 65536},
				"cwd":              path,
				"user":             guestUser,
			},
		}, Service.RunCommand, textRun),
		row(spec{
			Name:  "start_background_task",
			Title: "Start a background task in a VM",
			Description: "Starts a shell command line (sh -c) inside the VM and returns at once with its task_id. The task goes on when this call, the client or the server ends, until it finishes, stop_task stops it or the instance ends. " +
				"Follow it with get_task_status (wait_seconds waits for its end) and get_task_logs.",
			hints: hints{destructive: true, openWorld: true},
			rules: rules{"instance_id": instanceID, "command": command, "cwd": path, "request_id": requestID},
		}, Service.StartBackgroundTask, textStart),
		row(spec{
			Name:  "get_task_status",
			Title: "See how a task is",
			Description: "Returns the status of a task (running, succeeded, failed or stopped), its exit_code or signal and its times. " +
				"With wait_seconds it waits so long for the end and answers as soon as the task ends: better than asking repeatedly. Works also for tasks of instances that have ended.",
			hints: hints{readOnly: true, idempotent: true},
			rules: rules{"task_id": taskID, "wait_seconds": {min: num(0), max: num(3600), def: 0}},
		}, Service.GetTaskStatus, textTask),
		row(spec{
			Name:  "get_task_logs",
			Title: "Read a task's output",
			Description: "Returns output of a task that runs or has ended: by default the last 500 lines of both streams. To read on or to read everything, name one stream and pass offset, then the next_offset of each answer, until next_offset equals total_bytes. " +
				"dropped_bytes says how much of the beginning is no longer kept. After its instance has ended the last 64 KiB of each stream remain.",
			hints: hints{readOnly: true, idempotent: true},
			rules: rules{
				"task_id":   taskID,
				"tail":      {min: num(1), max: num(100000), def: 500},
				"stream":    {enum: []string{"stdout", "stderr", "both"}, def: "both"},
				"offset":    {min: num(0), max: num(1 << 53)},
				"max_bytes": {min: num(1), max: num(1 << 20), def: 65536},
			},
		}, taskLogs, textLogs),
		row(spec{
			Name:  "stop_task",
			Title: "Stop a task",
			Description: "Stops a running task with every process it started: SIGTERM, then SIGKILL after a grace period; force sends SIGKILL at once. Returns the real exit_code and signal. " +
				"A task that has already ended answers TASK_ALREADY_FINISHED: see get_task_status.",
			hints: hints{destructive: true},
			rules: rules{"task_id": taskID, "force": no},
		}, Service.StopTask, textStop),
		row(spec{
			Name:        "list_tasks",
			Title:       "List tasks",
			Description: "Lists tasks, newest first: by default the background tasks of all instances. kind=command lists those that run_command started, kind=all both.",
			hints:       hints{readOnly: true, idempotent: true},
			rules: rules{
				"instance_id": instanceID,
				"status":      {enum: taskStatuses},
				"kind":        {enum: []string{"background", "command", "all"}, def: "background"},
			},
		}, Service.ListTasks, textTasks),
		row(spec{
			Name:  "copy_to_instance",
			Title: "Copy into a VM",
			Description: "Copies a file or a directory tree from the host into the VM, overwriting files of the same name. " +
				"As with cp -r: if remote_path is an existing directory, the source is placed inside it under its own name; otherwise it gets the name remote_path, and parent directories are made. " +
				"The host path must lie in the workspace or in a directory that the operator allowed (PATH_NOT_ALLOWED otherwise); symlinks are not followed.",
			hints: hints{destructive: true, idempotent: true},
			rules: rules{"instance_id": instanceID, "local_path": path, "remote_path": path},
		}, Service.CopyToInstance, textCopyTo),
		row(spec{
			Name:  "copy_from_instance",
			Title: "Copy out of a VM",
			Description: "Copies a file or a directory tree from the VM to the host, overwriting files of the same name. " +
				"As with cp -r: if local_path is an existing directory, the source is placed inside it under its own name; otherwise it gets the name local_path. " +
				"The host path must lie in the workspace or in a directory that the operator allowed (PATH_NOT_ALLOWED otherwise). Devices, links that lead out and places that the host executes or trusts unasked (.git, .vscode, .envrc, …) are left alone and listed in refused.",
			hints: hints{destructive: true, idempotent: true},
			rules: rules{"instance_id": instanceID, "local_path": path, "remote_path": path},
		}, Service.CopyFromInstance, textCopyFrom),
		row(spec{
			Name:  "sync_workspace_to_instance",
			Title: "Sync the workspace into a VM",
			Description: "Brings the VM's copy of the workspace up to date: only changed files travel, and in the VM only what an earlier sync put there and the host has since removed is deleted. " +
				"A file that also changed in the VM is reported in conflicts. Call it after editing files on the host, before run_command.",
			hints: hints{destructive: true, idempotent: true},
			rules: rules{"instance_id": instanceID, "local_path": path, "remote_path": path},
		}, Service.SyncWorkspaceToInstance, textSyncTo),
		row(spec{
			Name:  "sync_instance_to_workspace",
			Title: "Sync the workspace back from a VM",
			Description: "Brings changes made in the VM back to the host's workspace, compared with the last sync on both sides: a file that changed on both is a conflict and stays as it is unless on_conflict says otherwise; one conflict does not hold up the other files. " +
				"Look first with dry_run=true. Places that the host executes or trusts unasked (.git, .vscode, .envrc, …) are never written and are listed in refused.",
			hints: hints{destructive: true, idempotent: true},
			rules: rules{
				"instance_id": instanceID, "local_path": path, "remote_path": path, "dry_run": no,
				"on_conflict": {enum: []string{"fail", "keep_host", "keep_guest"}, def: "fail"},
			},
		}, Service.SyncInstanceToWorkspace, textSyncFrom),
		row(spec{
			Name:  "collect_artifacts",
			Title: "Collect results from a VM",
			Description: "Copies chosen files, directories or globs out of the VM into a directory on the host and writes a manifest with the size, sha256 and mode of each. Never overwrites: a second collection goes beside the first (the real paths are in artifacts). " +
				"A path that is missing is listed in failed and does not lose the others. local_dest must lie in the workspace or in a directory that the operator allowed.",
			rules: rules{
				"instance_id": instanceID, "local_dest": path,
				"remote_paths":    {minItems: 1},
				"max_total_bytes": {min: num(1), max: num(1 << 53), def: 1 << 30},
			},
		}, Service.CollectArtifacts, textCollect),
		row(spec{
			Name:  "fork_instance",
			Title: "Copy a running VM",
			Description: "Makes 1 to 8 copies of a running instance as it is at one moment: memory, running processes, files, also those not yet written to disk. The source stands still for a moment (pause_ms; seconds where the hypervisor has to send its memory, see doctor) and goes on. " +
				"Use it to try several fixes from the same prepared state in parallel: fork, work in each child with its own instance_id, destroy those that failed. " +
				"Each child counts against MAX_INSTANCES; if not all fit, none is made. Children keep the workspace binding and the synced directory, and get a hostname, machine-id and random state of their own. " +
				"What was running in the source goes on in the children too, but is no task there (see running_tasks); open network connections break; secrets in memory are in every child. " +
				"status=partial: some children did not come up, children[].error says why. UNSUPPORTED_BY_BACKEND where capabilities.clones is false.",
			rules: rules{"instance_id": instanceID, "count": {min: num(1), max: num(8), def: 1}, "ttl_minutes": ttl, "request_id": requestID},
		}, Service.ForkInstance, textFork),
		row(spec{
			Name:  "snapshot_instance",
			Title: "Save a running VM's state",
			Description: "Saves the whole state of a running instance at one moment: memory, running processes and disk. The instance stands still for a moment (pause_ms; seconds where the hypervisor has to send its memory, see doctor) and goes on. " +
				"restore_instance later makes a new VM that begins exactly there, any number of times, also after the instance is gone. " +
				"A snapshot does not expire and takes disk space until delete_snapshot (INSUFFICIENT_DISK when there is none left); it contains whatever secrets the VM has in memory or on disk.",
			rules: rules{
				"instance_id": instanceID, "request_id": requestID,
				"name":        {maxLen: 100},
				"description": {maxLen: 2000},
			},
		}, Service.SnapshotInstance, textSnapshot),
		row(spec{
			Name:  "list_snapshots",
			Title: "List saved states",
			Description: "Lists snapshots, newest first, with their source, size, pause and the instances that began in them (children). kind=fork is the common state of the children of fork_instance: it goes by itself with the last of them. " +
				"total_bytes of cap_bytes are in use.",
			hints: hints{readOnly: true, idempotent: true},
			rules: rules{"instance_id": instanceID},
		}, Service.ListSnapshots, textSnapshots),
		row(spec{
			Name:  "restore_instance",
			Title: "Make a VM from a saved state",
			Description: "Makes a new instance that begins in a snapshot: processes go on where they were, files are as they were. The result is that of create_instance with start_kind clone. " +
				"It counts against MAX_INSTANCES and expires like any instance. It keeps the snapshot's size, workspace binding and synced directory; call sync_workspace_to_instance to bring the workspace up to date. " +
				"Processes that were tasks of the source are no tasks here; open network connections are gone.",
			rules: rules{"snapshot_id": snapshotID, "ttl_minutes": ttl, "request_id": requestID},
		}, Service.RestoreInstance, textCreate),
		row(spec{
			Name:  "delete_snapshot",
			Title: "Delete a saved state",
			Description: "Removes a snapshot and its files. It is refused with INVALID_ARGUMENT while instances that began in it exist (details.instances names them): destroy those first. " +
				"disk_kept=true: the disk of its source, or of another snapshot, builds on this one's, which goes with the last of them.",
			hints: hints{destructive: true, idempotent: true},
			rules: rules{"snapshot_id": snapshotID},
		}, Service.DeleteSnapshot, textDeleteSnapshot),
	}
}
