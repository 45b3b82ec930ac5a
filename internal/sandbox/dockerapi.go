package sandbox

// DockerRunRequest runs a container.
type DockerRunRequest struct {
	InstanceID     string            `json:"instance_id" jsonschema:"The instance to run in."`
	Image          string            `json:"image" jsonschema:"Image reference, such as app:dev. It is pulled if the VM does not have it."`
	Command        string            `json:"command,omitempty" jsonschema:"Command for the container instead of the image's own. Plain words are passed on as they are; a line with shell syntax (&&, |, $VAR, globs, builtins) runs with sh -c in the container."`
	Name           string            `json:"name,omitempty" jsonschema:"Name of the container. Without one Docker invents a name, and a container that runs in the foreground is removed when it ends."`
	Env            map[string]string `json:"env,omitempty" jsonschema:"Environment of the container. The instance's connection variables (DB_HOST, REDIS_URL, …) are set too unless given here."`
	Volumes        []string          `json:"volumes,omitempty" jsonschema:"Volumes as source:target[:options]; sources are volume names or paths in the VM, relative ones (./data) from the workspace."`
	Ports          []string          `json:"ports,omitempty" jsonschema:"Ports to publish in the VM, as [address:]port:container_port[/protocol]."`
	Workdir        string            `json:"workdir,omitempty" jsonschema:"Working directory in the container."`
	Detach         *bool             `json:"detach,omitempty" jsonschema:"Default true: return when the container has started. False: wait for its end and return its output and exit code."`
	Privileged     bool              `json:"privileged,omitempty" jsonschema:"Default false. True: full access to the VM (never to the host)."`
	TimeoutSeconds *float64          `json:"timeout_seconds,omitempty" jsonschema:"Default 600: for pulling the image and, in the foreground, the container's run. When it passes, the container is killed and removed."`
}

// DockerRunResult says what the container did.
type DockerRunResult struct {
	InstanceID string `json:"instance_id"`
	Container  string `json:"container"` // its name, or its id where none was given; "" once it was removed
	CommandResult
}

// DockerExecRequest runs a command in a running container.
type DockerExecRequest struct {
	InstanceID     string   `json:"instance_id" jsonschema:"The instance that the container runs in."`
	Container      string   `json:"container" jsonschema:"Name or id of a running container."`
	Command        string   `json:"command" jsonschema:"Shell command line; it runs with sh -c in the container. A non-zero exit code is a normal result."`
	TimeoutSeconds *float64 `json:"timeout_seconds,omitempty" jsonschema:"Default 600. When it passes, the command's processes in the container are killed."`
}

// DockerExecResult is the end of a command in a container.
type DockerExecResult struct {
	InstanceID string `json:"instance_id"`
	Container  string `json:"container"`
	CommandResult
}

// DockerLogsRequest reads a container's output.
type DockerLogsRequest struct {
	InstanceID    string   `json:"instance_id" jsonschema:"The instance that the container is in."`
	Container     string   `json:"container" jsonschema:"Name or id of a container, running or not."`
	Tail          *int     `json:"tail,omitempty" jsonschema:"Number of last lines to return, default 500."`
	Follow        bool     `json:"follow,omitempty" jsonschema:"Default false. True: keep reading for follow_seconds and return what came."`
	FollowSeconds *float64 `json:"follow_seconds,omitempty" jsonschema:"Default 10: how long follow reads. It returns earlier when the container ends."`
	Since         string   `json:"since,omitempty" jsonschema:"Only output since then: a time (2026-01-02T15:04:05Z) or an age (90s, 10m, 2h)."`
}

// DockerLogsResult is the output that was there.
type DockerLogsResult struct {
	InstanceID string `json:"instance_id"`
	Container  string `json:"container"`
	CommandResult
}

// DockerComposeRequest runs a Compose action.
type DockerComposeRequest struct {
	InstanceID     string   `json:"instance_id" jsonschema:"The instance to run in."`
	ProjectDir     string   `json:"project_dir" jsonschema:"Directory of the Compose project in the VM, relative to the synced workspace (. for itself) or absolute."`
	Action         string   `json:"action" jsonschema:"up, down, ps, logs, pull, build, restart, stop or exec."`
	File           string   `json:"file,omitempty" jsonschema:"Compose file, relative to project_dir or absolute; Compose's own search (compose.yaml, docker-compose.yml, …) if absent."`
	Services       []string `json:"services,omitempty" jsonschema:"Only these services; all if absent. exec needs exactly one."`
	Detach         *bool    `json:"detach,omitempty" jsonschema:"For up. Default true: return when the services have started. False: stay attached until they end or timeout_seconds pass."`
	Command        string   `json:"command,omitempty" jsonschema:"For exec: shell command line; it runs with sh -c in the service's container."`
	Follow         bool     `json:"follow,omitempty" jsonschema:"For logs. Default false. True: keep reading for follow_seconds and return what came."`
	FollowSeconds  *float64 `json:"follow_seconds,omitempty" jsonschema:"For logs. Default 10: how long follow reads."`
	Since          string   `json:"since,omitempty" jsonschema:"For logs: only output since then, a time or an age such as 10m."`
	Tail           *int     `json:"tail,omitempty" jsonschema:"For logs: number of last lines per service, default 500."`
	TimeoutSeconds *float64 `json:"timeout_seconds,omitempty" jsonschema:"Default 1800 (exec: 600). When it passes, the docker compose command is killed; containers that it started stay."`
}

// DockerComposeResult says what Compose did.
type DockerComposeResult struct {
	InstanceID    string  `json:"instance_id"`
	ProjectDir    string  `json:"project_dir"`
	Action        string  `json:"action"`
	ComposeFollow bool    `json:"compose_follow"`
	ComposeSince  *string `json:"compose_since"`
	ComposeTail   *int    `json:"compose_tail"`
	Bridge        Bridge  `json:"bridge"`
	// ConnectionEnv is what the services can use to reach the instance's own.
	ConnectionEnv map[string]string `json:"connection_env"`
	CommandResult
}

// Bridge says how a Compose project's services joined the instance's network.
type Bridge struct {
	Status                     string `json:"status"` // connected, skipped or none
	Network                    string `json:"network"`
	NetworkStatus              string `json:"network_status"` // existing, created or skipped
	ContainersSeen             int    `json:"containers_seen"`
	ContainersConnected        int    `json:"containers_connected"`         // joined with this call
	ContainersAlreadyConnected int    `json:"containers_already_connected"` // were there before
}

// DockerPSRequest lists containers.
type DockerPSRequest struct {
	InstanceID string `json:"instance_id" jsonschema:"The instance to look into."`
	All        bool   `json:"all,omitempty" jsonschema:"Default false: only running containers. True: all."`
}

// DockerPSResult lists containers, newest first.
type DockerPSResult struct {
	InstanceID string      `json:"instance_id"`
	All        bool        `json:"all"`
	Containers []Container `json:"containers"`
	CommandResult
}

// Container is one container of docker_ps.
type Container struct {
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Image     string            `json:"image"` // as it was named when the container was made
	ImageID   string            `json:"image_id"`
	Command   string            `json:"command"`
	State     string            `json:"state"`  // created, running, paused, restarting, exited or dead
	Status    string            `json:"status"` // for people, such as "Up 3 minutes"
	CreatedAt string            `json:"created_at"`
	Ports     []string          `json:"ports"`
	Labels    map[string]string `json:"labels"`
	Networks  []string          `json:"networks"`
}

// Image is one image of docker_images.
type Image struct {
	ID        string            `json:"id"`
	Tags      []string          `json:"tags"`
	Digests   []string          `json:"digests"`
	CreatedAt string            `json:"created_at"`
	SizeBytes int64             `json:"size_bytes"`
	Labels    map[string]string `json:"labels"`
}

// DockerImagesRequest lists images.
type DockerImagesRequest struct {
	InstanceID string `json:"instance_id" jsonschema:"The instance to look into."`
}

// DockerImagesResult lists images, newest first.
type DockerImagesResult struct {
	InstanceID string  `json:"instance_id"`
	Images     []Image `json:"images"`
	CommandResult
}

// DockerCleanupRequest frees disk in the VM.
type DockerCleanupRequest struct {
	InstanceID string `json:"instance_id" jsonschema:"The instance to clean up."`
	Mode       string `json:"mode" jsonschema:"safe: untagged images that nothing uses, and build cache. aggressive: also stopped containers, every image that no container uses, unused networks and volumes."`
}

// DockerCleanupResult says what was freed.
type DockerCleanupResult struct {
	InstanceID     string `json:"instance_id"`
	Mode           string `json:"mode"`
	ReclaimedBytes int64  `json:"reclaimed_bytes"`
	CommandResult
}
