package config

import "runtime"

// Kind is the type of a key's value.
type Kind string

// The kinds. Numbers and integers are never booleans, inf or nan.
const (
	Bool     Kind = "bool"
	Integer  Kind = "integer"
	Number   Kind = "number"
	Text     Kind = "string"
	List     Kind = "list of strings"
	Map      Kind = "table of strings"
	Duration Kind = "duration"
)

// Key is one key of the workspace configuration.
type Key struct {
	Path    string // dotted
	Kind    Kind
	Default any    // nil: absent. bool, int64, float64, string, []string, map[string]string
	Allowed string // for people: what values are accepted
	// Operator keys may only be set in the operator's own files.
	Operator bool
	// Secret values are masked wherever they are shown.
	Secret bool
	// Only names the backend that reads the key; "" is every one.
	Only string
	// Legacy keys existed in the earlier version.
	Legacy bool
	Doc    string

	check  func(v any) string    // "" or what is wrong; v is normalised
	target func(c *Config) any   // pointer to the field
	byHost func(goos string) any // overrides Default
}

// Schema is the table of all keys, in the order of the reference page.
func Schema() []Key { return schema }

// defaultFor is the key's default on a host.
func (k *Key) defaultFor(goos string) any {
	if k.byHost != nil {
		return k.byHost(goos)
	}
	return k.Default
}

const (
	allowedBool     = "true or false"
	allowedPositive = "a number greater than 0"
	allowedDuration = `a duration such as "90m", "24h" or "7d"; a number is hours`
	allowedImage    = `an image reference such as "mysql:8.0"`
	allowedHost     = "a host name: letters, digits and hyphens, no underscore, at most 50 characters"
	allowedNetwork  = "a Docker network name: letters, digits, _ . and -, starting with a letter or digit"
	allowedRelative = `a relative path inside the workspace, or "" for off`
)

const (
	docPrefix   = "Prefix of the container's name, which is its host name too: PREFIX-sandbox."
	docExtraEnv = "Environment of the container. What the image takes its password, user or database from wins over the keys here."
	docInject   = "File in the guest's workspace that gets the connection variables, in a marked block at its end. The block is never synced to the host. A value that sh, Docker and Compose would not read alike is refused."
)

var (
	staleActions   = []string{"rebuild", "warn", "fail"}
	dirtyActions   = []string{"warn_and_rebuild", "rebuild", "warn", "fail"}
	missingActions = []string{"build", "warn", "fail"}
	validations    = []string{"strict", "warn", "disabled"}
	strategies     = []string{"content_hash", "git_commit", "smart"}
	lockFiles      = []string{
		"pyproject.toml", "uv.lock", "poetry.lock", "Pipfile.lock", "requirements.txt", "package-lock.json", "yarn.lock",
		"pnpm-lock.yaml", "bun.lock", "go.sum", "Cargo.lock", "Gemfile.lock", "composer.lock", "mix.lock", "gradle.lockfile",
	}
)

func toggle(path string, def bool, doc string, target func(c *Config) *bool) Key {
	return Key{Path: path, Kind: Bool, Default: def, Allowed: allowedBool, Legacy: true, Doc: doc,
		target: func(c *Config) any { return target(c) }}
}

func positive(path string, def float64, doc string, target func(c *Config) *float64) Key {
	return Key{Path: path, Kind: Number, Default: def, Allowed: allowedPositive, Legacy: true, Doc: doc, check: checkPositive,
		target: func(c *Config) any { return target(c) }}
}

func oneOf(path, def string, values []string, doc string, target func(c *Config) *string) Key {
	return Key{Path: path, Kind: Text, Default: def, Allowed: join(values), Legacy: true, Doc: doc, check: checkEnum(values),
		target: func(c *Config) any { return target(c) }}
}

var schema = []Key{
	{Path: "vm.cpus", Kind: Integer, Default: int64(1), Allowed: "a whole number from 1 to 4096", Legacy: true, check: checkCPUs,
		Doc: "Virtual CPUs.", target: func(c *Config) any { return &c.VM.CPUs }},
	positive("vm.memory_gib", 2, "Memory in GiB.", func(c *Config) *float64 { return &c.VM.MemoryGiB }),
	positive("vm.disk_gib", 15, "Size of the root disk in GiB: at least the image's own root file system (3 GiB for default); a smaller value gives that.", func(c *Config) *float64 { return &c.VM.DiskGiB }),
	{Path: "vm.arch", Kind: Text, Allowed: "an architecture such as amd64, x86_64, arm64 or aarch64", Legacy: true, check: checkPattern(archName),
		Doc: "Architecture of the guest; the host's if absent.", target: func(c *Config) any { return &c.VM.Arch }},
	{Path: "vm.vm_type", Kind: Text, Allowed: "the name of a Lima VM type, such as qemu or vz", Legacy: true, Only: "lima", check: checkPattern(archName),
		Doc:    "Lima's VM type. The default is vz on macOS, qemu on Linux, absent elsewhere.",
		target: func(c *Config) any { return &c.VM.VMType }, byHost: defaultVMType},
	{Path: "vm.template", Kind: Text, Default: "template:docker", Allowed: "a Lima template; in a workspace's file one of vm.allowed_templates", Legacy: true, Only: "lima", check: checkTemplate,
		Doc: "Lima's template. A workspace's file or an override may only choose one that vm.allowed_templates lists.", target: func(c *Config) any { return &c.VM.Template }},
	{Path: "vm.allowed_templates", Kind: List, Default: []string{"template:docker"}, Allowed: "a list of Lima templates", Operator: true, Only: "lima", check: checkEach(checkTemplate),
		Doc: "Templates that a workspace may choose.", target: func(c *Config) any { return &c.VM.AllowedTemplates }},
	{Path: "vm.image", Kind: Text, Allowed: "the name of a built image: letters, digits, _ . and -", Only: "qemu", check: checkPattern(imageName),
		Doc: "Name of a built guest image (see `sandboxforge image list`); the default recipe if absent.", target: func(c *Config) any { return &c.VM.Image }},

	toggle("docker.install_if_missing", true, "Where a guest has no Docker, prepare_workspace installs it with the guest's own apt-get: that takes systemd in the guest and its distribution's mirror. Otherwise, and with false, it is RUNTIME_NOT_READY.", func(c *Config) *bool { return &c.Docker.InstallIfMissing }),

	toggle("build.enable_buildkit", true, "Build with BuildKit; false: with the classic builder.", func(c *Config) *bool { return &c.Build.EnableBuildkit }),
	positive("build.min_free_gib", 3, "Free disk in GiB that a build needs in the guest. With less, images without a name and unused build cache are removed first; if that is not enough the build is refused (INSUFFICIENT_DISK).", func(c *Config) *float64 { return &c.Build.MinFreeGiB }),
	toggle("build.prebuilt.enabled", true, "Reuse an image from elsewhere (loaded, pulled, built by hand) that already has the name that docker_build is to give.", func(c *Config) *bool { return &c.Build.Prebuilt.Enabled }),
	oneOf("build.prebuilt.validation", "strict", validations, "How such an image is judged. strict: reused only if its labels prove the same content (build.content.hash, or git.commit with a clean workspace), dependencies, Dockerfile, target and build arguments. warn: reused in any case, with warnings. disabled: never reused.", func(c *Config) *string { return &c.Build.Prebuilt.Validation }),
	toggle("build.prebuilt.staleness_check.check_git_commit", true, "The label git.commit of a prebuilt image counts: as proof, and where it differs as a reason against it.", func(c *Config) *bool { return &c.Build.Prebuilt.StalenessCheck.CheckGitCommit }),
	toggle("build.prebuilt.staleness_check.check_dependencies", true, "The label build.dependencies.hash of a prebuilt image must be the workspace's, unless its content is proven to be.", func(c *Config) *bool { return &c.Build.Prebuilt.StalenessCheck.CheckDependencies }),
	duration("build.prebuilt.staleness_check.check_age_threshold", "24h", "Age from which a prebuilt image is stale, by its label build.timestamp or else its creation.", func(c *Config) any { return &c.Build.Prebuilt.StalenessCheck.CheckAgeThreshold }),
	oneOf("build.prebuilt.staleness_check.on_stale", "rebuild", staleActions, "What docker_build does with a prebuilt image that is not proven, or too old. warn reuses one that is only too old, and builds otherwise; fail is PREBUILT_IMAGE_INVALID. No effect with validation = warn.", func(c *Config) *string { return &c.Build.Prebuilt.StalenessCheck.OnStale }),
	toggle("build.image_caching.enabled", true, "Reuse images that docker_build made of exactly the same, and keep them under a second name (tag_format).", func(c *Config) *bool { return &c.Build.ImageCaching.Enabled }),
	oneOf("build.image_caching.strategy", "smart", strategies, "What else must fit beside the content, which always must. content_hash: nothing. git_commit: the commit, in a clean workspace. smart: the commit where there is one and staleness_detection.check_git_commit is on.", func(c *Config) *string { return &c.Build.ImageCaching.Strategy }),
	{Path: "build.image_caching.tag_format", Kind: Text, Default: "{image}:{git_short}-{deps_hash}", Allowed: "an image reference with the placeholders {image} {git_short} {deps_hash} {content_hash}", Legacy: true, check: checkTagFormat,
		Doc: "Form of a cached image's name. A part of a hash is added where the name would not tell two builds apart: for a workspace that is no clean commit, for content_hash, and for a target, build arguments or another Dockerfile.", target: func(c *Config) any { return &c.Build.ImageCaching.TagFormat }},
	toggle("build.staleness_detection.check_git_commit", true, "With the strategy smart, an image of another commit is stale although its content is the same.", func(c *Config) *bool { return &c.Build.StalenessDetection.CheckGitCommit }),
	toggle("build.staleness_detection.check_git_dirty", true, "Look for uncommitted changes; see on_dirty_workspace.", func(c *Config) *bool { return &c.Build.StalenessDetection.CheckGitDirty }),
	toggle("build.staleness_detection.check_dockerfile", true, "A changed Dockerfile is a reason against an image in validate_image. docker_build never reuses across a changed Dockerfile, except a prebuilt image with validation = warn.", func(c *Config) *bool { return &c.Build.StalenessDetection.CheckDockerfile }),
	{Path: "build.staleness_detection.check_dependencies", Kind: List, Default: lockFiles, Allowed: "a list of globs inside the workspace", Legacy: true, check: checkEach(checkGlob),
		Doc: "Files of the build context whose content is the dependencies hash; ** stands for any number of directories.", target: func(c *Config) any { return &c.Build.StalenessDetection.CheckDependencies }},
	duration("build.staleness_detection.max_age_threshold", "24h", "Age from which an image that docker_build made is stale.", func(c *Config) any { return &c.Build.StalenessDetection.MaxAgeThreshold }),
	oneOf("build.staleness_detection.on_stale", "rebuild", staleActions, "What docker_build does with an image that is the same but stale: build, reuse it with a warning, or fail (PREBUILT_IMAGE_INVALID).", func(c *Config) *string { return &c.Build.StalenessDetection.OnStale }),
	oneOf("build.staleness_detection.on_dirty_workspace", "warn_and_rebuild", dirtyActions, "What docker_build does when the workspace has uncommitted changes: warn_and_rebuild and rebuild always build, warn reuses an image of the same content, fail is PREBUILT_IMAGE_INVALID.", func(c *Config) *string { return &c.Build.StalenessDetection.OnDirtyWorkspace }),
	oneOf("build.staleness_detection.on_missing", "build", missingActions, "What docker_build does when there is no image under the name and none of the same content. fail is IMAGE_NOT_FOUND: images must then be brought in, or built with no_cache=true.", func(c *Config) *string { return &c.Build.StalenessDetection.OnMissing }),

	toggle("infra.ensure_network", true, "Make the instance's Docker network if it is missing. Services need one: where this is false and it is missing, they are refused.", func(c *Config) *bool { return &c.Infra.EnsureNetwork }),
	toggle("infra.bridge_to_compose_network", true, "Connect compose services to the instance's network.", func(c *Config) *bool { return &c.Infra.BridgeToComposeNetwork }),
	toggle("infra.include_services_by_default", true, "Start the enabled services in prepare_workspace.", func(c *Config) *bool { return &c.Infra.IncludeServicesByDefault }),
	{Path: "infra.network_name", Kind: Text, Allowed: allowedNetwork, Legacy: true, check: checkPattern(networkName),
		Doc: "Name of the Docker network; made from the prefix if absent.", target: func(c *Config) any { return &c.Infra.NetworkName }},
	{Path: "infra.network_name_prefix", Kind: Text, Default: "lima-net", Allowed: allowedNetwork, Legacy: true, check: checkPattern(networkName),
		Doc: "Prefix of the Docker network's name.", target: func(c *Config) any { return &c.Infra.NetworkNamePrefix }},

	service("infra.mysql", "enabled", Bool, false, allowedBool, nil, "Run MySQL. True where any file or override has the table infra.mysql.", func(c *Config) any { return &c.Infra.MySQL.Enabled }),
	service("infra.mysql", "image", Text, "mysql:8.0", allowedImage, checkImage, "Image of MySQL. Another image is another server: the one there is stopped and renamed, and keeps its data.", func(c *Config) any { return &c.Infra.MySQL.Image }),
	{Path: "infra.mysql.root_password", Kind: Text, Allowed: "1 to 128 printable characters", Legacy: true, Secret: true, check: checkPassword,
		Doc: "Root password of MySQL; generated if absent, another one for each instance.", target: func(c *Config) any { return &c.Infra.MySQL.Password }},
	service("infra.mysql", "database", Text, "app", "a database name: letters, digits, _ $ and -, at most 64", checkPattern(databaseName), "Database to create.", func(c *Config) any { return &c.Infra.MySQL.Database }),
	service("infra.mysql", "container_name_prefix", Text, "lima-mysql", allowedHost, checkPattern(hostLabel), docPrefix, func(c *Config) any { return &c.Infra.MySQL.ContainerNamePrefix }),
	service("infra.mysql", "extra_env", Map, map[string]string{}, "a table of strings; keys are variable names", checkEnv, docExtraEnv, func(c *Config) any { return &c.Infra.MySQL.ExtraEnv }),
	service("infra.mysql", "inject_env_to", Text, ".env", allowedRelative, checkInject, docInject, func(c *Config) any { return &c.Infra.MySQL.InjectEnvTo }),

	service("infra.redis", "enabled", Bool, false, allowedBool, nil, "Run Redis. True where any file or override has the table infra.redis.", func(c *Config) any { return &c.Infra.Redis.Enabled }),
	service("infra.redis", "image", Text, "redis:7-alpine", allowedImage, checkImage, "Image of Redis. It runs without a password: only its own VM reaches it.", func(c *Config) any { return &c.Infra.Redis.Image }),
	service("infra.redis", "container_name_prefix", Text, "lima-redis", allowedHost, checkPattern(hostLabel), docPrefix, func(c *Config) any { return &c.Infra.Redis.ContainerNamePrefix }),
	service("infra.redis", "extra_env", Map, map[string]string{}, "a table of strings; keys are variable names", checkEnv, docExtraEnv, func(c *Config) any { return &c.Infra.Redis.ExtraEnv }),
	service("infra.redis", "inject_env_to", Text, ".env", allowedRelative, checkInject, docInject, func(c *Config) any { return &c.Infra.Redis.InjectEnvTo }),

	newKey(service("infra.postgres", "enabled", Bool, false, allowedBool, nil, "Run PostgreSQL. True where any file or override has the table infra.postgres.", func(c *Config) any { return &c.Infra.Postgres.Enabled })),
	newKey(service("infra.postgres", "image", Text, "postgres:16-alpine", allowedImage, checkImage, "Image of PostgreSQL. Another image is another server: the one there is stopped and renamed, and keeps its data.", func(c *Config) any { return &c.Infra.Postgres.Image })),
	{Path: "infra.postgres.password", Kind: Text, Allowed: "1 to 128 printable characters", Secret: true, check: checkPassword,
		Doc: "Password of PostgreSQL's superuser; generated if absent, another one for each instance.", target: func(c *Config) any { return &c.Infra.Postgres.Password }},
	newKey(service("infra.postgres", "database", Text, "app", "a database name: letters, digits, _ $ and -, at most 63", checkPattern(postgresName), "Database to create.", func(c *Config) any { return &c.Infra.Postgres.Database })),
	newKey(service("infra.postgres", "container_name_prefix", Text, "lima-postgres", allowedHost, checkPattern(hostLabel), docPrefix, func(c *Config) any { return &c.Infra.Postgres.ContainerNamePrefix })),
	newKey(service("infra.postgres", "extra_env", Map, map[string]string{}, "a table of strings; keys are variable names", checkEnv, docExtraEnv, func(c *Config) any { return &c.Infra.Postgres.ExtraEnv })),
	newKey(service("infra.postgres", "inject_env_to", Text, ".env", allowedRelative, checkInject, docInject, func(c *Config) any { return &c.Infra.Postgres.InjectEnvTo })),
	{Path: "infra.inject_env_on_host", Kind: Bool, Default: false, Allowed: allowedBool, Operator: true,
		Doc: "Write the connection variables into the file in the host's workspace too, under the rules for files from a guest: never through a symbolic link, nor to a place that the host trusts.", target: func(c *Config) any { return &c.Infra.InjectEnvOnHost }},

	toggle("sync.include_git", false, "Send the top-level .git directory too.", func(c *Config) *bool { return &c.Sync.IncludeGit }),
	{Path: "sync.exclude_patterns", Kind: List, Default: []string{".venv", ".pytest_cache", ".uv-cache", "__pycache__"}, Allowed: "a list of patterns in gitignore syntax", Legacy: true, check: checkEach(checkIgnorePattern),
		Doc: "What is not synced.", target: func(c *Config) any { return &c.Sync.ExcludePatterns }},
	{Path: "sync.use_gitignore", Kind: Bool, Default: false, Allowed: allowedBool, Legacy: true,
		Doc: "Also leave out what the workspace's .gitignore files name.", target: func(c *Config) any { return &c.Sync.UseGitignore }},
	{Path: "sync.allow_refused", Kind: List, Default: []string{}, Allowed: `a list of names (".vscode") or relative paths ("docs/AGENTS.md")`, Operator: true, check: checkEach(checkAllowRefused),
		Doc: "Places that are refused by default for files from a guest, because the host executes or trusts what lies there, and that are allowed here.", target: func(c *Config) any { return &c.Sync.AllowRefused }},
}

func duration(path, def, doc string, target func(c *Config) any) Key {
	return Key{Path: path, Kind: Duration, Default: def, Allowed: allowedDuration, Legacy: true, Doc: doc, target: target}
}

func service(table, name string, kind Kind, def any, allowed string, check func(any) string, doc string, target func(c *Config) any) Key {
	return Key{Path: table + "." + name, Kind: kind, Default: def, Allowed: allowed, Legacy: true, Doc: doc, check: check, target: target}
}

// newKey marks a key that the earlier version did not have.
func newKey(k Key) Key {
	k.Legacy = false
	return k
}

func defaultVMType(goos string) any {
	switch goos {
	case "darwin":
		return "vz"
	case "linux":
		return "qemu"
	}
	return nil
}

// byPath and tables index the schema: keys by path, and the names of all
// tables that contain keys.
var byPath, tables = index(schema)

func index(keys []Key) (map[string]*Key, map[string]bool) {
	paths, tabs := map[string]*Key{}, map[string]bool{"": true}
	for i := range keys {
		p := keys[i].Path
		paths[p] = &keys[i]
		for j, c := range p {
			if c == '.' {
				tabs[p[:j]] = true
			}
		}
	}
	return paths, tabs
}

func hostOS(goos string) string {
	if goos == "" {
		return runtime.GOOS
	}
	return goos
}
