package mcpserver

var (
	containerName = rule{minLen: 1, maxLen: 128, pattern: `^[A-Za-z0-9][A-Za-z0-9_.-]*$`}
	imageName     = rule{minLen: 1, maxLen: 512}
	logTail       = rule{min: num(0), max: num(100000), def: 500}
	logSince      = rule{minLen: 1, maxLen: 64}
	followSeconds = rule{min: num(0.1), max: num(600), def: 10}
)

// What every Docker tool needs.
const needsDocker = " The instance must have a workspace, and Docker must answer in it (RUNTIME_NOT_READY otherwise: call prepare_workspace with wait_for_ready=true)."

// catalogDocker are the tools for containers and Compose projects in a VM.
func catalogDocker() []*tool {
	return []*tool{
		row(spec{
			Name:  "docker_run",
			Title: "Run a container in a VM",
			Description: "Runs a container inside the VM: by default detached (returns its name or id when it has started), with detach=false until it ends (returns output and exit_code; an exit code other than 0 is a normal result). " +
				"The container joins the instance's network, where services and other containers answer by name, and gets the connection variables (DB_HOST, REDIS_URL, …). " +
				"Volumes and ports are those of the VM, never of the host. What Docker itself cannot do is DOCKER_COMMAND_FAILED with its output in details. " +
				"Cancelling the call kills and removes the container." + needsDocker,
			hints: hints{destructive: true, openWorld: true},
			rules: rules{
				"instance_id": instanceID, "image": imageName, "name": containerName, "detach": yes, "privileged": no,
				"command":         {maxLen: 128 << 10},
				"workdir":         {maxLen: 4096},
				"timeout_seconds": {min: num(0.1), max: num(86400), def: 600},
			},
		}, Service.DockerRun, textDockerRun),
		row(spec{
			Name:  "docker_exec",
			Title: "Run a command in a container",
			Description: "Runs a shell command line (sh -c) in a running container of the VM and waits for its end. An exit code other than 0 is a normal result; what Docker cannot do (no such container: CONTAINER_NOT_FOUND; not running, no shell: DOCKER_COMMAND_FAILED) is an error. " +
				"After timeout_seconds, or when the call is cancelled, the command's processes in the container are killed; the container goes on." + needsDocker,
			hints: hints{destructive: true, openWorld: true},
			rules: rules{
				"instance_id": instanceID, "container": containerName, "command": command,
				"timeout_seconds": {min: num(0.1), max: num(86400), def: 600},
			},
		}, Service.DockerExec, textDockerExec),
		row(spec{
			Name:  "docker_logs",
			Title: "Read a container's output",
			Description: "Returns the last lines that a container of the VM printed, whether it runs or has ended. With follow it keeps reading for follow_seconds and returns what came in that time; it never waits longer." +
				needsDocker,
			hints: hints{readOnly: true, idempotent: true},
			rules: rules{"instance_id": instanceID, "container": containerName, "tail": logTail, "follow": no, "follow_seconds": followSeconds, "since": logSince},
		}, Service.DockerLogs, textDockerLogs),
		row(spec{
			Name:  "docker_compose",
			Title: "Run Compose in a VM",
			Description: "Runs an action of Docker Compose on a project in the VM's copy of the workspace: up, down, ps, logs, pull, build, restart, stop, or exec (a shell command line in the container of one service). " +
				"With up the services join the instance's network before they start (bridge in the result says how many), so that they reach the instance's services by name; the connection variables are there for ${DB_HOST} and the like in the file. " +
				"The Compose file must lie in the workspace. down keeps volumes. Progress shows Compose's newest line. A failed action is DOCKER_COMMAND_FAILED with its output in details." + needsDocker,
			hints: hints{destructive: true, openWorld: true},
			rules: rules{
				"instance_id": instanceID, "project_dir": path, "file": path, "detach": yes, "follow": no,
				"action":          {enum: []string{"up", "down", "ps", "logs", "pull", "build", "restart", "stop", "exec"}},
				"command":         {maxLen: 128 << 10},
				"follow_seconds":  followSeconds,
				"since":           logSince,
				"tail":            logTail,
				"timeout_seconds": {min: num(0.1), max: num(86400), def: 1800},
			},
		}, Service.DockerCompose, textDockerCompose),
		row(spec{
			Name:  "docker_ps",
			Title: "List the containers of a VM",
			Description: "Lists containers in the VM, newest first, with image, state, ports, labels and networks: running ones, or all with all=true." +
				needsDocker,
			hints: hints{readOnly: true, idempotent: true},
			rules: rules{"instance_id": instanceID, "all": no},
		}, Service.DockerPS, textDockerPS),
		row(spec{
			Name:        "docker_images",
			Title:       "List the images of a VM",
			Description: "Lists the container images that the VM has, newest first, with tags, size, age and labels." + needsDocker,
			hints:       hints{readOnly: true, idempotent: true},
			rules:       rules{"instance_id": instanceID},
		}, Service.DockerImages, textDockerImages),
		row(spec{
			Name:  "docker_cleanup",
			Title: "Free Docker's disk in a VM",
			Description: "Frees disk in the VM and says how many bytes. safe removes untagged images and build cache that nothing uses; aggressive also stopped containers, every image and network that no container uses, unnamed volumes and all build cache. " +
				"Running containers, the instance's network and its services stay. Use it after INSUFFICIENT_DISK or when a build failed with no space left." + needsDocker,
			hints: hints{destructive: true, idempotent: true},
			rules: rules{"instance_id": instanceID, "mode": {enum: []string{"safe", "aggressive"}}},
		}, Service.DockerCleanup, textDockerCleanup),
	}
}
