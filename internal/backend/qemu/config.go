package qemu

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"

	"sandboxforge/internal/fault"
)

// Config is what a Backend is made from. Its JSON form is enough to make an
// equal one in another process that does not Create: the image of a VM is
// recorded with the VM, so only Create and Probe need Images.
type Config struct {
	// StateDir holds one directory per VM. Made when missing, mode 0700.
	StateDir string `json:"state_dir"`
	// RunDir holds sockets; at most 60 bytes long, since socket addresses are
	// short. Made when missing, mode 0700.
	RunDir string `json:"run_dir"`
	// CacheDir remembers which accelerator works. Made when missing.
	CacheDir string `json:"cache_dir"`
	// Accel is "auto" (or empty), "kvm" or "tcg". Anything but auto is used
	// without a trial.
	Accel string `json:"accel,omitempty"`
	// QEMU and QEMUImg are the executables; empty: from PATH by architecture.
	QEMU    string `json:"qemu,omitempty"`
	QEMUImg string `json:"qemu_img,omitempty"`

	Images ImageFinder  `json:"-"`
	Logger *slog.Logger `json:"-"` // nil: no logs
}

// ImageFinder finds built guest images. Find("", arch) is the default image.
// An image that is not there is a fault with the code IMAGE_NOT_FOUND.
type ImageFinder interface {
	Find(name, arch string) (Image, error)
}

// Image is a guest image: files that never change while a VM uses them.
type Image struct {
	Name       string `json:"name"`
	Arch       string `json:"arch"`   // GOARCH
	Digest     string `json:"digest"` // of the whole image
	Kernel     string `json:"kernel"` // absolute paths
	Initrd     string `json:"initrd,omitempty"`
	Root       string `json:"root"`
	RootFormat string `json:"root_format,omitempty"` // "raw" when empty, or "qcow2"
	Cmdline    string `json:"cmdline"`               // with console= and root=
}

const maxRunDir = 60

func (c *Config) check() error {
	for what, dir := range map[string]*string{"state_dir": &c.StateDir, "run_dir": &c.RunDir, "cache_dir": &c.CacheDir} {
		if *dir == "" {
			return fault.New(fault.Internal, "the qemu backend needs a %s", what)
		}
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		*dir = abs
	}
	if len(c.RunDir) > maxRunDir {
		return fault.New(fault.InvalidArgument, "the directory for sockets, %s, is longer than %d bytes", c.RunDir, maxRunDir).
			Because("addresses of unix sockets have room for about 100 bytes").
			Next("choose a shorter directory, for example under /run/user or /tmp")
	}
	if c.Accel == "auto" {
		c.Accel = ""
	}
	if !slices.Contains([]string{"", "kvm", "tcg"}, c.Accel) {
		return fault.New(fault.InvalidArgument, "accelerator %.40q: auto, kvm or tcg", c.Accel)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}
