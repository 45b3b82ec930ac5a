package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// Names within an instance's directory.
const (
	specFile = "spec.json"
	endFile  = "end.json"
	lockFile = "supervisor.lock"
	pidFile  = "supervisor.pid"
	logFile  = "supervisor.log"
)

// maxSocketPath is below every system's bound on sun_path (104 on macOS, 108
// on Linux and Windows).
const maxSocketPath = 99

// maxSpecBytes bounds spec.json; a spec is a few hundred bytes.
const maxSpecBytes = 1 << 20

// Options is everything that a supervisor process needs. It is written to
// Dir/spec.json by the supervisor that wins the directory.
type Options struct {
	// Dir is the VM's instance directory, absolute; made with mode 0700.
	Dir string `json:"dir"`
	// RunDir is a short absolute directory for sockets; made with mode 0700
	// and refused if it belongs to somebody else.
	RunDir string `json:"run_dir"`
	// InstanceID is what clients compare to know that they reached the right VM.
	InstanceID string `json:"instance_id"`
	// Backend names the registered constructor and its configuration.
	Backend BackendRef `json:"backend"`
	// Spec is the VM, already made by Backend.Create.
	Spec backend.Spec `json:"spec"`
	// Accel forces an accelerator; empty: what the backend's probe found.
	Accel string `json:"accel,omitempty"`
	// Deadline is when the VM is taken down.
	Deadline time.Time `json:"deadline"`
	// BootTimeout bounds the boot with all its retries. 0: 5 minutes.
	BootTimeout time.Duration `json:"boot_timeout_ns,omitempty"`
	// BootAttempts bounds how often the VM is started. 0: 3.
	BootAttempts int `json:"boot_attempts,omitempty"`
	// LogLevel is a slog level name. Empty: INFO.
	LogLevel string `json:"log_level,omitempty"`
	// Tuning is for tests and for slow hosts.
	Tuning Tuning `json:"tuning,omitzero"`
}

// Tuning holds the supervisor's own intervals. Zero values mean the defaults.
type Tuning struct {
	// StallTimeout ends a boot attempt whose console has been silent for so
	// long while the agent does not answer. 0: a quarter of BootTimeout,
	// between 30 s and 2 min. It does not apply to the last attempt.
	StallTimeout time.Duration `json:"stall_timeout_ns,omitempty"`
	// ConnectTimeout bounds one try to reach the agent. 0: 10 s.
	ConnectTimeout time.Duration `json:"connect_timeout_ns,omitempty"`
	// PingInterval is the pause between pings of an agent. 0: 15 s.
	PingInterval time.Duration `json:"ping_interval_ns,omitempty"`
	// PingTimeout is how long a ping may take before the link counts as dead.
	// 0: 45 s; an emulated guest under load can take several seconds.
	PingTimeout time.Duration `json:"ping_timeout_ns,omitempty"`
	// BackoffMax bounds the growing pause between tries to reach the agent.
	// 0: 5 s.
	BackoffMax time.Duration `json:"backoff_max_ns,omitempty"`
	// TailTimeout bounds the collection of task output at the end. 0: 5 s.
	TailTimeout time.Duration `json:"tail_timeout_ns,omitempty"`
	// StopTimeout bounds the end of the VM beyond its grace. 0: 30 s.
	StopTimeout time.Duration `json:"stop_timeout_ns,omitempty"`
	// ExpiryGrace is the polite part of a power-off at the deadline. 0: 3 s.
	ExpiryGrace time.Duration `json:"expiry_grace_ns,omitempty"`
	// BackstopGrace is how much later than the deadline the guest powers
	// itself off. 0: 60 s.
	BackstopGrace time.Duration `json:"backstop_grace_ns,omitempty"`
	// SocketCheck is the pause between looks at the socket's file. 0: 5 s.
	SocketCheck time.Duration `json:"socket_check_ns,omitempty"`
}

// BackendRef is how a child process finds its Backend: the name given to
// RegisterBackend and what its constructor needs.
type BackendRef struct {
	Name   string          `json:"name"`
	Config json.RawMessage `json:"config,omitempty"`
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.BootTimeout, 5*time.Minute)
	if o.BootAttempts <= 0 {
		o.BootAttempts = 3
	}
	t := &o.Tuning
	def(&t.StallTimeout, min(max(o.BootTimeout/4, 30*time.Second), 2*time.Minute))
	def(&t.ConnectTimeout, 10*time.Second)
	def(&t.PingInterval, 15*time.Second)
	def(&t.PingTimeout, 45*time.Second)
	def(&t.BackoffMax, 5*time.Second)
	def(&t.TailTimeout, 5*time.Second)
	def(&t.StopTimeout, 30*time.Second)
	def(&t.ExpiryGrace, 3*time.Second)
	def(&t.BackstopGrace, time.Minute)
	def(&t.SocketCheck, 5*time.Second)
	return o
}

// validName is backend.Spec's rule; it also keeps the name a single path
// element.
var validName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)

// Validate says what keeps these options from being launched.
func (o Options) Validate() error {
	bad := func(format string, args ...any) error {
		return fault.New(fault.InvalidArgument, "cannot supervise: "+format, args...)
	}
	switch {
	case !validName.MatchString(o.Spec.Name):
		return bad("%q is not a VM name", o.Spec.Name)
	case !filepath.IsAbs(o.Dir):
		return bad("instance directory %q is not absolute", o.Dir)
	case !filepath.IsAbs(o.RunDir):
		return bad("socket directory %q is not absolute", o.RunDir)
	case o.InstanceID == "":
		return bad("no instance id")
	case o.Backend.Name == "":
		return bad("no backend")
	case o.Deadline.IsZero():
		return bad("no deadline")
	}
	return checkSocketPath(socketPath(o.RunDir, o.Spec.Name))
}

func socketPath(runDir, name string) string { return filepath.Join(runDir, name+".sock") }

func checkSocketPath(p string) error {
	if len(p) > maxSocketPath {
		return fault.New(fault.InvalidArgument, "the socket path %s has %d bytes, more than the %d that every system allows", p, len(p), maxSocketPath).
			Because("the run directory's path is too long").
			Next("set SANDBOX_RUN_DIR (or XDG_RUNTIME_DIR) to a shorter directory")
	}
	return nil
}

// readSpec reads options written by writeSpec. A damaged file is ErrCorrupt.
func readSpec(path string) (Options, error) {
	b, err := readBounded(path, maxSpecBytes)
	if err != nil {
		return Options{}, err
	}
	return parseSpec(b)
}

func parseSpec(b []byte) (Options, error) {
	var o Options
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&o); err != nil {
		return Options{}, fmt.Errorf("%w: spec: %w", ErrCorrupt, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return Options{}, fmt.Errorf("%w: spec: something follows it", ErrCorrupt)
	}
	if err := o.Validate(); err != nil {
		return Options{}, fmt.Errorf("%w: spec: %w", ErrCorrupt, err)
	}
	return o, nil
}

// readBounded reads a regular file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is not a regular file", ErrCorrupt, path)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%w: %s is larger than %d bytes", ErrCorrupt, path, limit)
	}
	return b, nil
}
