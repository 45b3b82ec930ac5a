package backends

import (
	"path"
	"slices"
	"strings"
)

// What connects on a guest's behalf: hypervisors with a user network of their
// own, by how their names begin, and the helpers that are such a network.
var (
	hypervisorPrefixes = []string{"qemu-system-", "qemu-kvm", "passt", "pasta", "vmware-vmx"}
	hypervisorNames    = []string{"slirp4netns", "libslirp-helper", "gvproxy", "vboxheadless", "virtualboxvm", "vboxnetnat", "vboxsvc"}
)

// IsHypervisor reports whether an executable, given by its path or name, is
// one whose connections may come from inside a VM or a container's network
// rather than from a program of this machine.
func IsHypervisor(exe string) bool {
	name := strings.ToLower(path.Base(strings.ReplaceAll(exe, `\`, "/")))
	name = strings.TrimPrefix(name, ".") // a wrapped program, as Nix names it
	return slices.Contains(hypervisorNames, strings.TrimSuffix(name, ".exe")) ||
		slices.ContainsFunc(hypervisorPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
