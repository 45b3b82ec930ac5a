package config

import (
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sandboxforge/internal/fault"
)

// Settings are the environment's part of the configuration, complete and
// checked. Paths are absolute.
type Settings struct {
	Home       string // all state lives here
	UserHome   string
	ConfigHome string // the directory that holds sandboxforge-mcp/config.toml

	HTTPHost             string
	HTTPPort             int
	HTTPAllowNonLoopback bool
	HTTPToken            string // see ResolveHTTP
	HTTPTokenFile        string
	EnableHTTP           bool
	EnableStdio          string // auto, on, off

	LeaseDBPath     string
	MaxInstances    int
	DefaultTTL      time.Duration
	MaxTTL          time.Duration
	SweeperInterval time.Duration
	Backend         string // auto, qemu, lima, hyperv
	Accel           string // auto, kvm, hvf, tcg
	WarmPool        int
	Templates       bool // VMs may begin in a saved state
	// PreparedTemplates: also in one in which services run.
	PreparedTemplates bool
	TemplateCap       int64    // bytes on the disk
	SnapshotCap       int64    // bytes on the disk
	WorkspaceRoots    []string // nil: a workspace may lie anywhere
	AllowedRoots      []string
	LogLevel          slog.Level
	LogFormat         string // text, json
	SessionID         string
	ImageDir          string
	HyperV            HyperVSettings

	// Warnings are sentences about deprecated variables, to be logged once.
	Warnings []string
}

// HyperVSettings are the variables of the hyperv backend.
type HyperVSettings struct {
	SwitchName  string
	BaseVHDX    string // "": hyperv is not usable
	StorageDir  string
	SSHUser     string
	SSHKeyPath  string
	SSHPort     int
	BootTimeout time.Duration
}

// EnvVar documents one variable of the environment.
type EnvVar struct{ Name, Default, Doc string }

// EnvVars lists every variable that LoadSettings reads.
func EnvVars() []EnvVar {
	return []EnvVar{
		{"SANDBOXFORGE_HOME", "the platform's state directory + /sandboxforge", "where all state lives; relative paths below start here"},
		{"MCP_HTTP_HOST", "127.0.0.1", "address of the HTTP endpoint; localhost and ::1 are loopback too"},
		{"MCP_HTTP_ALLOW_NON_LOOPBACK", "0", "allows another host than loopback, together with a token"},
		{"MCP_HTTP_TOKEN", "", "bearer token; required off loopback"},
		{"MCP_HTTP_TOKEN_FILE", "", "file that holds the bearer token"},
		{"MCP_HTTP_PORT", "8765", "port of the HTTP endpoint"},
		{"MCP_ENABLE_HTTP", "1", "serve HTTP"},
		{"MCP_ENABLE_STDIO", "auto", "serve stdio; auto: unless stdin is closed, /dev/null or a terminal"},
		{"LEASE_DB_PATH", "state/leases.db", "the lease database; must not lie on a network file system"},
		{"MAX_INSTANCES", "3", "instances that may exist at once"},
		{"DEFAULT_TTL_MINUTES", "30", "lifetime of an instance that asks for none"},
		{"MAX_TTL_MINUTES", "120", "longest lifetime, counted from now"},
		{"SANDBOX_SWEEPER_INTERVAL_SECONDS", "60", "how often expired leases are looked for"},
		{"LIMA_SWEEPER_INTERVAL_SECONDS", "", "deprecated name of SANDBOX_SWEEPER_INTERVAL_SECONDS"},
		{"SANDBOX_BACKEND", "auto", "auto, qemu, lima or hyperv"},
		{"SANDBOX_ACCEL", "auto", "auto, kvm, hvf or tcg"},
		{"SANDBOX_TEMPLATES", "auto", "auto: new VMs are clones of a template where the backend can, also of one with the configured services running; plain: only of templates without services; off: every VM boots"},
		{"SANDBOX_TEMPLATE_CAP_GIB", "20", "what templates may take on the disk; the least recently used make room"},
		{"SANDBOX_SNAPSHOT_CAP_GIB", "40", "what snapshots and forks may take on the disk; beyond it no new one is made"},
		{"SANDBOX_WARM_POOL", "0", "ready clones kept per template in use"},
		{"SANDBOX_WORKSPACE_ROOTS", "", "path list; if set, workspace_root must lie inside one of them"},
		{"SANDBOX_ALLOWED_ROOTS", "", "path list: further host directories that tools may read and write"},
		{"SANDBOX_IMAGE_DIR", "images", "where built guest images live"},
		{"SANDBOX_LOG_LEVEL", "info", "debug, info, warn or error"},
		{"SANDBOX_LOG_FORMAT", "text", "text or json, to stderr"},
		{"MCP_SESSION_ID", "local", "recorded as owner_session"},
		{"HYPERV_SWITCH_NAME", "Default Switch", "virtual switch of the VMs"},
		{"HYPERV_BASE_VHDX", "", "base disk; required for hyperv"},
		{"HYPERV_STORAGE_DIR", "state/hyperv", "where the VMs' disks are stored"},
		{"HYPERV_SSH_USER", "ubuntu", "user of the base disk"},
		{"HYPERV_SSH_KEY_PATH", "", "private key for that user"},
		{"HYPERV_SSH_PORT", "22", "ssh port in the guest"},
		{"HYPERV_BOOT_TIMEOUT_SECONDS", "180", "how long a boot may take"},
		{"XDG_STATE_HOME", "~/.local/state", "base of SANDBOXFORGE_HOME on Linux"},
		{"XDG_CONFIG_HOME", "~/.config", "base of the operator's configuration files"},
		{"XDG_RUNTIME_DIR", "", "where sockets go if SANDBOXFORGE_HOME is too long for them"},
	}
}

// LoadSettings reads the environment through getenv, for which "" means unset,
// as it is on the platform goos (a GOOS name). Every bad value is reported in
// one fault INVALID_ARGUMENT whose detail "problems" lists variable, value and
// what is allowed. It touches no file.
func LoadSettings(getenv func(string) string, goos string) (*Settings, error) {
	e := &envReader{getenv: getenv, goos: goos}
	s := &Settings{}
	homeVar := "HOME"
	if goos == "windows" {
		homeVar = "USERPROFILE"
	}
	s.UserHome = getenv(homeVar)
	e.userHome = s.UserHome
	if s.UserHome != "" && !filepath.IsAbs(s.UserHome) {
		e.bad(homeVar, s.UserHome, "an absolute path")
	}

	s.Home = e.stateHome(homeVar)
	e.base = s.Home
	s.ConfigHome = e.absolute("XDG_CONFIG_HOME", filepath.Join(s.UserHome, ".config"))

	s.HTTPHost = e.text("MCP_HTTP_HOST", "127.0.0.1")
	if h := s.HTTPHost; net.ParseIP(strings.Trim(h, "[]")) == nil && !hostName.MatchString(h) {
		e.bad("MCP_HTTP_HOST", h, "an IP address or a host name, without a port")
	}
	s.HTTPHost = strings.Trim(s.HTTPHost, "[]")
	s.HTTPAllowNonLoopback = e.boolean("MCP_HTTP_ALLOW_NON_LOOPBACK", false)
	s.HTTPToken = strings.TrimSpace(getenv("MCP_HTTP_TOKEN"))
	if strings.ContainsFunc(s.HTTPToken, notTokenRune) {
		e.bad("MCP_HTTP_TOKEN", "(hidden)", "printable ASCII without spaces")
	}
	s.HTTPTokenFile = e.path("MCP_HTTP_TOKEN_FILE", "")
	if s.HTTPToken != "" && s.HTTPTokenFile != "" {
		e.bad("MCP_HTTP_TOKEN_FILE", s.HTTPTokenFile, "only one of MCP_HTTP_TOKEN and MCP_HTTP_TOKEN_FILE")
	}
	s.HTTPPort = e.integer("MCP_HTTP_PORT", 8765, 0, 65535)
	s.EnableHTTP = e.boolean("MCP_ENABLE_HTTP", true)
	s.EnableStdio = e.autoBoolean("MCP_ENABLE_STDIO")

	s.LeaseDBPath = e.path("LEASE_DB_PATH", filepath.Join("state", "leases.db"))
	s.MaxInstances = e.integer("MAX_INSTANCES", 3, 1, 10000)
	def := e.integer("DEFAULT_TTL_MINUTES", 30, 1, maxMinutes)
	most := e.integer("MAX_TTL_MINUTES", 120, 1, maxMinutes)
	if def > most {
		if getenv("DEFAULT_TTL_MINUTES") == "" { // only the maximum was lowered
			e.bad("MAX_TTL_MINUTES", strconv.Itoa(most), fmt.Sprintf("at least DEFAULT_TTL_MINUTES, which is %d: lower that too", def))
		} else {
			e.bad("DEFAULT_TTL_MINUTES", strconv.Itoa(def), fmt.Sprintf("at most MAX_TTL_MINUTES, which is %d", most))
		}
	}
	s.DefaultTTL, s.MaxTTL = time.Duration(def)*time.Minute, time.Duration(most)*time.Minute
	sweeper := "SANDBOX_SWEEPER_INTERVAL_SECONDS"
	if old := "LIMA_SWEEPER_INTERVAL_SECONDS"; getenv(old) != "" {
		if getenv(sweeper) == "" {
			sweeper = old
			s.Warnings = append(s.Warnings, old+" is deprecated: rename it to SANDBOX_SWEEPER_INTERVAL_SECONDS")
		} else {
			s.Warnings = append(s.Warnings, old+" is deprecated and ignored, since SANDBOX_SWEEPER_INTERVAL_SECONDS is set: remove it")
		}
	}
	s.SweeperInterval = time.Duration(e.integer(sweeper, 60, 1, 86400)) * time.Second

	s.Backend = e.choice("SANDBOX_BACKEND", "auto", "auto", "qemu", "lima", "hyperv")
	s.Accel = e.choice("SANDBOX_ACCEL", "auto", "auto", "kvm", "hvf", "tcg")
	templates := e.choice("SANDBOX_TEMPLATES", "auto", "auto", "plain", "off")
	s.Templates, s.PreparedTemplates = templates != "off", templates == "auto"
	s.TemplateCap = int64(e.integer("SANDBOX_TEMPLATE_CAP_GIB", 20, 1, 1<<20)) << 30
	s.SnapshotCap = int64(e.integer("SANDBOX_SNAPSHOT_CAP_GIB", 40, 1, 1<<20)) << 30
	s.WarmPool = e.integer("SANDBOX_WARM_POOL", 0, 0, 100)
	s.WorkspaceRoots = e.pathList("SANDBOX_WORKSPACE_ROOTS")
	s.AllowedRoots = e.pathList("SANDBOX_ALLOWED_ROOTS")
	s.ImageDir = e.path("SANDBOX_IMAGE_DIR", "images")
	switch e.choice("SANDBOX_LOG_LEVEL", "info", "debug", "info", "warn", "error") {
	case "debug":
		s.LogLevel = slog.LevelDebug
	case "warn":
		s.LogLevel = slog.LevelWarn
	case "error":
		s.LogLevel = slog.LevelError
	}
	s.LogFormat = e.choice("SANDBOX_LOG_FORMAT", "text", "text", "json")
	s.SessionID = e.text("MCP_SESSION_ID", "local")

	h := &s.HyperV
	h.SwitchName = e.text("HYPERV_SWITCH_NAME", "Default Switch")
	h.BaseVHDX = e.path("HYPERV_BASE_VHDX", "")
	h.StorageDir = e.path("HYPERV_STORAGE_DIR", filepath.Join("state", "hyperv"))
	h.SSHUser = e.text("HYPERV_SSH_USER", "ubuntu")
	if !userName.MatchString(h.SSHUser) {
		e.bad("HYPERV_SSH_USER", h.SSHUser, "a user name: letters, digits, _ . and -, not first")
	}
	h.SSHKeyPath = e.path("HYPERV_SSH_KEY_PATH", "")
	h.SSHPort = e.integer("HYPERV_SSH_PORT", 22, 1, 65535)
	h.BootTimeout = time.Duration(e.integer("HYPERV_BOOT_TIMEOUT_SECONDS", 180, 1, 86400)) * time.Second

	if len(e.problems) > 0 {
		return nil, e.fault()
	}
	return s, nil
}

// maxMinutes is a year: beyond that a lease is a mistake.
const maxMinutes = 366 * 24 * 60

func (e *envReader) fault() error {
	lines := make([]string, len(e.problems))
	list := make([]map[string]string, len(e.problems))
	for i, p := range e.problems {
		lines[i] = fmt.Sprintf("%s=%q: allowed: %s", p.variable, p.value, p.allowed)
		list[i] = map[string]string{"variable": p.variable, "value": p.value, "allowed": p.allowed}
	}
	return fault.New(fault.InvalidArgument, "the environment has %d bad value(s): %s", len(lines), strings.Join(lines, "; ")).
		Because("a variable of the environment that started this process is not usable").
		Next("correct or unset the named variables, in the MCP client's configuration if that sets them").
		With("problems", list)
}
