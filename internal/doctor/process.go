package doctor

import (
	"path/filepath"
	"regexp"
	"strings"
)

// Process is a process of a VM.
type Process struct {
	PID  int    `json:"pid"`
	Kind string `json:"kind"` // supervisor, hypervisor or other
	VM   string `json:"vm"`   // the VM's name
}

// vmName is what a VM's directory can be called; see backend.Spec.
var vmName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}`)

// processOf recognises a process of a VM under vmDir by its arguments.
func processOf(pid int, args []string, vmDir string) (Process, bool) {
	if len(args) == 0 {
		return Process{}, false
	}
	p := Process{PID: pid, Kind: "other"}
	switch {
	case len(args) > 1 && args[1] == "__supervise":
		p.Kind = "supervisor"
	case strings.HasPrefix(filepath.Base(args[0]), "qemu"):
		p.Kind = "hypervisor"
	}
	prefix := filepath.Clean(vmDir) + string(filepath.Separator)
	for _, a := range args[1:] {
		if i := strings.Index(a, prefix); i >= 0 {
			if name := vmName.FindString(a[i+len(prefix):]); name != "" {
				p.VM = name
				return p, true
			}
		}
	}
	return Process{}, false
}
