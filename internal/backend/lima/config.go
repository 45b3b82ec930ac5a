package lima

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// Config is what a Backend is made of; equal Configs make Backends of the same
// VMs, in any process.
type Config struct {
	// StateDir has a directory for each VM, LimaHome is Lima's. Both are
	// absolute, and nobody else's.
	StateDir string `json:"state_dir"`
	LimaHome string `json:"lima_home"`
	// Limactl is the program; empty: limactl in PATH.
	Limactl string `json:"limactl,omitempty"`
	// Accel is SANDBOX_ACCEL: auto or empty leaves the choice to Lima, tcg is
	// forced, others must be what Lima chooses.
	Accel string `json:"accel,omitempty"`
	// Env are further variables of limactl; for tests.
	Env []string `json:"env,omitempty"`
	// GuestRoot is what the guest's paths begin with; for tests.
	GuestRoot string `json:"guest_root,omitempty"`
	// Logger may be nil.
	Logger *slog.Logger `json:"-"`
}

func (c Config) check() error {
	for what, dir := range map[string]string{"state directory": c.StateDir, "LIMA_HOME": c.LimaHome} {
		if !filepath.IsAbs(dir) {
			return fault.New(fault.InvalidArgument, "the lima backend's %s %q is not an absolute path", what, dir)
		}
	}
	return nil
}

// Lima puts sockets below LIMA_HOME/NAME, and refuses a name for which that is
// longer than an address of a socket can be on any system.
const (
	maxSocketPath = 103
	longestSocket = "ssh.sock.1234567890123456"
	longestName   = 40
)

// MaxHome is how long a LIMA_HOME may be in which every VM's name fits.
const MaxHome = maxSocketPath - longestName - len(longestSocket) - 2

// instanceName is what Lima takes for a name.
var instanceName = regexp.MustCompile(`^[A-Za-z0-9]+(?:[._-](?:[A-Za-z0-9]+))*$`)

// checkSpec refuses what Lima cannot honour, and what would be an option or
// another word on a command line.
func (c Config) checkSpec(s backend.Spec) error {
	if err := s.Check(); err != nil {
		return err
	}
	bad := func(format string, args ...any) *fault.Error {
		return fault.New(fault.InvalidArgument, format, args...)
	}
	switch {
	case !instanceName.MatchString(s.Name):
		return bad("%q cannot be the name of a Lima instance", s.Name).Because("Lima's names have no - at the end and never two in a row")
	case len(c.LimaHome)+len(s.Name)+len(longestSocket)+2 > maxSocketPath:
		return bad("LIMA_HOME %s is too long for an instance %s", c.LimaHome, s.Name).
			Because("the address of a socket has at most %d bytes", maxSocketPath).
			Next("set SANDBOXFORGE_HOME to a shorter directory")
	case s.From != "" || s.MemoryFile:
		return fault.Wrap(backend.ErrUnsupported, fault.UnsupportedByBackend, "VMs of the lima backend do not begin in saved states")
	case s.VMType != "" && !vmType.MatchString(s.VMType):
		return bad("vm.vm_type %.40q is no Lima VM type", s.VMType).Next("use qemu, or vz on macOS")
	case s.Template == "" || strings.HasPrefix(s.Template, "-") || strings.ContainsFunc(s.Template, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return bad("vm.template %.80q is no Lima template", s.Template).Next("use a template that vm.allowed_templates lists")
	}
	return nil
}

var vmType = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,30}$`)

// limaArch is Lima's name of a GOARCH.
func limaArch(goarch string) string {
	switch goarch {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return goarch
}

func mebibytes(n int64) string { return fmt.Sprintf("%dMiB", n) }
