package lima

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// closed is what makes an instance forget the host, as an expression of limactl
// create --set, beside --plain and --mount-none. Plain mode alone leaves proxies,
// the host's resolver and a template's networks as they are.
var closed = strings.Join([]string{
	".mounts = []", ".portForwards = []", ".copyToHost = []", ".networks = []", ".additionalDisks = []",
	".propagateProxyEnv = false", ".hostResolver.enabled = false",
	".ssh.forwardAgent = false", ".ssh.forwardX11 = false", ".ssh.forwardX11Trusted = false", ".ssh.loadDotSSHPubKeys = false",
	".containerd.system = false", ".containerd.user = false",
	// What a template waits for and says is about a host that works with it.
	".probes = []", `.message = ""`,
}, " | ")

// config is the part of an instance's effective configuration that decides what
// it has of the host. What is absent is Lima's default, and not good enough
// where that is open.
type config struct {
	Plain        *bool         `json:"plain"`
	Mounts       []any         `json:"mounts"`
	PortForwards []portForward `json:"portForwards"`
	CopyToHost   []any         `json:"copyToHost"`
	Networks     []any         `json:"networks"`
	Disks        []any         `json:"additionalDisks"`
	SSH          struct {
		ForwardAgent      *bool `json:"forwardAgent"`
		ForwardX11        *bool `json:"forwardX11"`
		ForwardX11Trusted *bool `json:"forwardX11Trusted"`
		LoadDotSSHPubKeys *bool `json:"loadDotSSHPubKeys"`
	} `json:"ssh"`
	PropagateProxyEnv *bool `json:"propagateProxyEnv"`
	HostResolver      struct {
		Enabled *bool `json:"enabled"`
	} `json:"hostResolver"`
	Provision []struct {
		Mode string `json:"mode"`
	} `json:"provision"`
}

type portForward struct {
	Ignore bool `json:"ignore"`
}

// leaks lists what an instance has of the host and must not have.
func (c *config) leaks() (all []string) {
	if c == nil {
		return []string{"its configuration cannot be read"}
	}
	say := func(bad bool, format string, args ...any) {
		if bad {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	on := func(b *bool) bool { return b != nil && *b }
	say(!on(c.Plain), "it is not in plain mode")
	say(len(c.Mounts) > 0, "it mounts %d directories of the host (mounts)", len(c.Mounts))
	forwards := 0
	for _, f := range c.PortForwards {
		if !f.Ignore {
			forwards++
		}
	}
	say(forwards > 0, "it forwards %d ports or sockets to the host (portForwards)", forwards)
	say(len(c.CopyToHost) > 0, "it copies files to the host (copyToHost)")
	say(len(c.Networks) > 0, "it joins further networks (networks)")
	say(len(c.Disks) > 0, "it has disks of other instances (additionalDisks)")
	say(on(c.SSH.ForwardAgent), "it takes the host's ssh agent along (ssh.forwardAgent)")
	say(on(c.SSH.ForwardX11) || on(c.SSH.ForwardX11Trusted), "it takes the host's display along (ssh.forwardX11)")
	say(on(c.SSH.LoadDotSSHPubKeys), "it takes the keys of ~/.ssh (ssh.loadDotSSHPubKeys)")
	// These two are on unless they are off.
	say(c.PropagateProxyEnv == nil || *c.PropagateProxyEnv, "it takes the host's proxy variables along (propagateProxyEnv)")
	say(c.HostResolver.Enabled == nil || *c.HostResolver.Enabled, "it asks the host's resolver (hostResolver.enabled)")
	for _, p := range c.Provision {
		say(p.Mode == "ansible", "it runs a playbook on the host (provision mode ansible)")
	}
	return all
}

// globals are files of LIMA_HOME/_config that change every instance; ours has
// none.
var globals = []string{"override.yaml", "default.yaml", "base.yaml"}

// verify refuses an instance whose effective configuration is not what it was
// made with: something in LIMA_HOME, in its lima.yaml or in the template is
// stronger than the switches.
func (b *Backend) verify(l listed, s backend.Spec) error {
	found := l.Config.leaks()
	for _, name := range globals {
		path := filepath.Join(b.cfg.LimaHome, "_config", name)
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			found = append(found, "there is a "+path+", which changes every instance")
		}
	}
	if l.CPUs != 0 && l.CPUs != s.CPUs {
		found = append(found, fmt.Sprintf("it has %d CPUs instead of %d", l.CPUs, s.CPUs))
	}
	if l.Memory != 0 && l.Memory != s.MemoryMiB<<20 {
		found = append(found, fmt.Sprintf("it has %d MiB of memory instead of %d", l.Memory>>20, s.MemoryMiB))
	}
	if l.Disk != 0 && s.DiskBytes != 0 && l.Disk != wholeMiB(s.DiskBytes)<<20 {
		found = append(found, fmt.Sprintf("it has a disk of %d MiB instead of %d", l.Disk>>20, wholeMiB(s.DiskBytes)))
	}
	if len(found) == 0 {
		return nil
	}
	return fault.New(fault.BackendCommandFailed, "the Lima instance %s is not as it has to be and is not started: %s", s.Name, strings.Join(found, "; ")).
		Because("a file in %s or the template %s says otherwise than SandboxForge asked for", b.cfg.LimaHome, s.Template).
		Next("remove %s from %s", strings.Join(globals, ", "), filepath.Join(b.cfg.LimaHome, "_config")).
		Next("or use another template (vm.template), and create another instance").
		With("mismatches", found)
}

// wholeMiB rounds a size up to what is given to Lima.
func wholeMiB(n int64) int64 { return (n + 1<<20 - 1) >> 20 }
