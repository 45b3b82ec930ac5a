package sandbox

// The requests and results of docker_build and validate_image, as clients see
// them; see the rules in api.go.

// DockerBuildRequest builds an image.
type DockerBuildRequest struct {
	InstanceID     string            `json:"instance_id" jsonschema:"The instance to build in."`
	ContextPath    string            `json:"context_path" jsonschema:"Directory that is the build context, relative to the synced workspace (. for itself) or absolute inside it. A path of the host's workspace means the same place in the VM's copy."`
	ImageTag       string            `json:"image_tag" jsonschema:"Name for the image, such as app:dev; without a tag it is latest."`
	Dockerfile     string            `json:"dockerfile,omitempty" jsonschema:"Dockerfile, looked for relative to context_path, then relative to the workspace. Default Dockerfile. A file of its name with .dockerignore appended takes the place of the context's .dockerignore."`
	BuildArgs      map[string]string `json:"build_args,omitempty" jsonschema:"Build arguments. They win over those that docker_build adds where the Dockerfile declares them: GIT_COMMIT, GIT_BRANCH, BUILD_TIMESTAMP, DEPENDENCIES_HASH, WORKSPACE_CONTENT_HASH."`
	Target         string            `json:"target,omitempty" jsonschema:"Stage of a multi-stage Dockerfile to build; the last one if absent."`
	NoCache        bool              `json:"no_cache,omitempty" jsonschema:"Default false. True: always build, and without Docker's layer cache."`
	TimeoutSeconds *float64          `json:"timeout_seconds,omitempty" jsonschema:"Default 3600. When it passes, the build is stopped."`
}

// DockerBuildResult is an image that stands for the context.
type DockerBuildResult struct {
	InstanceID     string           `json:"instance_id"`
	ImageTag       string           `json:"image_tag"`
	ImageID        string           `json:"image_id"`
	CachedImageTag *string          `json:"cached_image_tag"` // null where it is not kept as a cached image
	CacheStrategy  string           `json:"cache_strategy"`   // content_hash, git_commit, smart, or disabled
	CacheHit       bool             `json:"cache_hit"`        // nothing was built
	Validation     *BuildValidation `json:"validation"`       // of the image that was there before; null with no_cache
	WorkspaceState WorkspaceState   `json:"workspace_state"`
	ReclaimedBytes int64            `json:"reclaimed_bytes,omitempty"` // freed to have build.min_free_gib
	Warnings       []string         `json:"warnings,omitempty"`
	CommandResult
}

// BuildValidation is how an existing image was judged.
type BuildValidation struct {
	Valid          bool           `json:"valid"`
	Reasons        []string       `json:"reasons"`
	Warnings       []string       `json:"warnings"`
	Recommendation string         `json:"recommendation"` // reuse, warn, rebuild, build or fail
	ImageMetadata  *ImageMetadata `json:"image_metadata"` // null if there is none
}

// WorkspaceState describes the tree that is built. Null is what is not known:
// git fields where the VM has no .git.
type WorkspaceState struct {
	GitCommit        *string `json:"git_commit"`
	GitShort         *string `json:"git_short"`
	GitBranch        *string `json:"git_branch"`
	GitDirty         *bool   `json:"git_dirty"`
	DependenciesHash *string `json:"dependencies_hash"` // null without any of the files that the configuration names
	DockerfileHash   *string `json:"dockerfile_hash"`
	ContentHash      string  `json:"content_hash"`
	BuildTimestamp   string  `json:"build_timestamp"`
}

// ImageMetadata is what an image's labels say.
type ImageMetadata struct {
	ImageName        string            `json:"image_name"`
	ImageID          string            `json:"image_id"`
	GitCommit        *string           `json:"git_commit"`
	GitBranch        *string           `json:"git_branch"`
	BuildTimestamp   *string           `json:"build_timestamp"`
	DependenciesHash *string           `json:"dependencies_hash"`
	AgeHours         *float64          `json:"age_hours"`
	Labels           map[string]string `json:"labels"`
}

// ValidateImageRequest asks whether an image stands for the workspace.
type ValidateImageRequest struct {
	InstanceID    string       `json:"instance_id" jsonschema:"The instance whose images and workspace are looked at."`
	ImageName     string       `json:"image_name" jsonschema:"Image reference in the VM, such as app:dev."`
	WorkspaceRoot string       `json:"workspace_root,omitempty" jsonschema:"The instance's workspace on the host; anything else is refused. It need not be given."`
	Checks        *ImageChecks `json:"checks,omitempty" jsonschema:"What to compare, instead of what the configuration says."`
	ContextPath   string       `json:"context_path,omitempty" jsonschema:"Build context that the image is to stand for, as in docker_build. Default: the workspace."`
	Dockerfile    string       `json:"dockerfile,omitempty" jsonschema:"Dockerfile, as in docker_build."`
}

// ImageChecks are the comparisons of validate_image.
type ImageChecks struct {
	GitCommit    *bool    `json:"git_commit,omitempty" jsonschema:"Compare the commit."`
	GitDirty     *bool    `json:"git_dirty,omitempty" jsonschema:"Look for uncommitted changes in the workspace."`
	Dependencies *bool    `json:"dependencies,omitempty" jsonschema:"Compare the hash of the dependency files."`
	MaxAgeHours  *float64 `json:"max_age_hours,omitempty" jsonschema:"Age from which the image is too old."`
}

// ValidateImageResult is the judgement.
type ValidateImageResult struct {
	InstanceID string `json:"instance_id"`
	BuildValidation
	WorkspaceState   WorkspaceState `json:"workspace_state"`
	ExpectedImageTag string         `json:"expected_image_tag"` // cached_image_tag of a build of this tree
}
