package config

import (
	"math"
	"time"
)

// Config is the resolved workspace configuration. A string that is absent is
// "".
type Config struct {
	VM     VMConfig
	Docker DockerConfig
	Build  BuildConfig
	Infra  InfraConfig
	Sync   SyncConfig
}

// VMConfig describes the virtual machine.
type VMConfig struct {
	CPUs             int
	MemoryGiB        float64
	DiskGiB          float64
	Arch             string // as it was written; see GOARCH
	VMType           string // lima
	Template         string // lima
	AllowedTemplates []string
	Image            string // qemu: "" is the default recipe
}

// GOARCH is the architecture in Go's spelling; "" for the host's.
func (v VMConfig) GOARCH() string {
	switch v.Arch {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return v.Arch
}

// MemoryMiB is the memory in whole MiB, rounded up.
func (v VMConfig) MemoryMiB() int64 { return int64(math.Ceil(v.MemoryGiB * 1024)) }

// DiskBytes is the disk's size in bytes, a multiple of 1 MiB, rounded up.
func (v VMConfig) DiskBytes() int64 { return int64(math.Ceil(v.DiskGiB*1024)) << 20 }

// DockerConfig is about Docker in the guest.
type DockerConfig struct {
	InstallIfMissing bool
}

// BuildConfig is about docker_build.
type BuildConfig struct {
	EnableBuildkit     bool
	MinFreeGiB         float64
	Prebuilt           PrebuiltConfig
	ImageCaching       ImageCachingConfig
	StalenessDetection StalenessConfig
}

// PrebuiltConfig is about images that exist already.
type PrebuiltConfig struct {
	Enabled        bool
	Validation     string // strict, warn, disabled
	StalenessCheck PrebuiltStaleness
}

// PrebuiltStaleness says when a prebuilt image is too old.
type PrebuiltStaleness struct {
	CheckGitCommit    bool
	CheckDependencies bool
	CheckAgeThreshold time.Duration
	OnStale           string // rebuild, warn, fail
}

// ImageCachingConfig names cached images.
type ImageCachingConfig struct {
	Enabled   bool
	Strategy  string // content_hash, git_commit, smart
	TagFormat string
}

// StalenessConfig says when a built image no longer fits the workspace.
type StalenessConfig struct {
	CheckGitCommit    bool
	CheckGitDirty     bool
	CheckDockerfile   bool
	CheckDependencies []string // globs inside the workspace
	MaxAgeThreshold   time.Duration
	OnStale           string // rebuild, warn, fail
	OnDirtyWorkspace  string // warn_and_rebuild, rebuild, warn, fail
	OnMissing         string // build, warn, fail
}

// InfraConfig is about the network and the services of an instance.
type InfraConfig struct {
	EnsureNetwork            bool
	BridgeToComposeNetwork   bool
	IncludeServicesByDefault bool
	NetworkName              string
	NetworkNamePrefix        string
	MySQL                    ServiceConfig
	Redis                    ServiceConfig
	Postgres                 ServiceConfig
	InjectEnvOnHost          bool
}

// ServiceConfig is one service. Redis has neither password nor database.
type ServiceConfig struct {
	Enabled             bool
	Image               string
	Password            string // MySQL's is root's; "": generate one
	Database            string
	ContainerNamePrefix string
	ExtraEnv            map[string]string
	InjectEnvTo         string // "": nowhere
}

// SyncConfig is about the workspace's files.
type SyncConfig struct {
	IncludeGit      bool
	ExcludePatterns []string
	UseGitignore    bool
	AllowRefused    []string
}

// Excludes is the effective list in gitignore syntax: the top-level .git
// unless it is included, then the configured patterns.
func (s SyncConfig) Excludes() []string {
	var list []string
	if !s.IncludeGit {
		list = append(list, "/.git")
	}
	return append(list, s.ExcludePatterns...)
}
