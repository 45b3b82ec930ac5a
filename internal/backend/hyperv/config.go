package hyperv

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"sandboxforge/internal/backend/hyperv/powershell"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/sshlink"
)

// Config is everything that a Backend is made from. It goes to supervisors as
// JSON; equal Configs make equal Backends.
type Config struct {
	// StorageDir is where VMs lie, absolute.
	StorageDir string `json:"storage_dir"`
	// BaseVHDX is the disk that VMs build on, absolute. It is never written.
	BaseVHDX string `json:"base_vhdx"`
	// SwitchName is the virtual switch of the VMs.
	SwitchName string `json:"switch_name"`
	// SSHUser is made in the guest; SSHPort is where its sshd listens. 0: 22.
	SSHUser string `json:"ssh_user"`
	SSHPort int    `json:"ssh_port,omitempty"`
	// SSHKeyPath is a private key, for people who want to log in too. Empty: a
	// key for each VM.
	SSHKeyPath string `json:"ssh_key_path,omitempty"`
	// BootTimeout is how long a guest may take to its first connection. 0: 3 min.
	BootTimeout time.Duration `json:"boot_timeout_ns,omitempty"`
	// SecureBoot is on with the template for systems that are not Windows. The
	// base must have a boot loader that the host trusts.
	SecureBoot bool `json:"secure_boot,omitempty"`
	// PowerShell is the executable. Empty: the one of Windows.
	PowerShell string `json:"power_shell,omitempty"`
	// Poll is the pause between looks at a running machine. 0: 1 s.
	Poll time.Duration `json:"poll_ns,omitempty"`

	// Logger may be nil.
	Logger *slog.Logger `json:"-"`
	// NewLink makes the way to a guest's agent, and Connect the connection for
	// it. Nil: sshlink's, and TCP. They are for tests.
	NewLink func(sshlink.Config) Link                                      `json:"-"`
	Connect func(ctx context.Context, to netip.AddrPort) (net.Conn, error) `json:"-"`
}

func (c Config) withDefaults() (Config, error) {
	c.SSHPort = cmp.Or(c.SSHPort, 22)
	c.SSHUser = cmp.Or(c.SSHUser, "ubuntu")
	c.SwitchName = cmp.Or(c.SwitchName, "Default Switch")
	c.BootTimeout = cmp.Or(c.BootTimeout, 3*time.Minute)
	c.Poll = cmp.Or(c.Poll, time.Second)
	c.PowerShell = cmp.Or(c.PowerShell, powershell.SystemPath())
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.PowerShell == "" || !filepath.IsAbs(c.PowerShell):
		return c, fault.New(fault.BackendUnavailable, "the hyperv backend needs Windows").
			Next("use the qemu backend on Linux, or lima on macOS")
	case !filepath.IsAbs(c.StorageDir):
		return c, fault.New(fault.InvalidArgument, "the storage directory %q is not absolute", c.StorageDir).
			Next("set HYPERV_STORAGE_DIR to an absolute path on a local disk")
	case isUNC(c.StorageDir) || isUNC(c.BaseVHDX):
		return c, fault.New(fault.InvalidArgument, "disks of VMs cannot lie on a network share").
			Next("set HYPERV_STORAGE_DIR and HYPERV_BASE_VHDX to paths on a local disk")
	}
	return c, nil
}

func isUNC(path string) bool {
	return strings.HasPrefix(path, `\\`) && !strings.HasPrefix(path, `\\?\`) && !strings.HasPrefix(path, `\\.\`)
}
