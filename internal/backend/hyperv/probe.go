package hyperv

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/backend/hyperv/powershell"
	"sandboxforge/internal/fault"
)

// hostInfo is what a script says of the computer.
type hostInfo struct {
	Caption       string                  `json:"caption"`
	Build         string                  `json:"build"`
	SKU           int64                   `json:"sku"`
	Hypervisor    bool                    `json:"hypervisor"`
	Modules       powershell.List[string] `json:"modules"`
	VMMS          string                  `json:"vmms"`
	Administrator bool                    `json:"administrator"`
	Member        bool                    `json:"member"`
	Switches      powershell.List[struct {
		ID   string `json:"id"`
		Name string `json:"name"`
		Type string `json:"type"`
	}] `json:"switches"`
	SwitchError string `json:"switchError"`
}

func (h hostInfo) hasSwitch(name string) bool {
	for _, s := range h.Switches {
		if strings.EqualFold(s.Name, name) {
			return true
		}
	}
	return false
}

func (h hostInfo) switchNames() string {
	var names []string
	for _, s := range h.Switches {
		names = append(names, strconv.Quote(s.Name))
	}
	if names == nil {
		return "(there is none)"
	}
	return strings.Join(names, ", ")
}

// module is the newest version of the Hyper-V module.
func (h hostInfo) module() (newest string, major int) {
	for _, v := range h.Modules {
		first, _, _ := strings.Cut(v, ".")
		if n, err := strconv.Atoi(first); err == nil && n >= major {
			newest, major = v, n
		}
	}
	return newest, major
}

// home: the editions that have no Hyper-V (OperatingSystemSKU of
// Win32_OperatingSystem: the CORE ones).
func (h hostInfo) home() bool { return h.SKU >= 98 && h.SKU <= 101 }

func (b *Backend) askHost(ctx context.Context) (h hostInfo, err error) {
	err = b.call(ctx, "host", b.queryLimit, map[string]any{}, &h)
	return h, err
}

// What mends a missing Hyper-V.
const (
	enableFeature = "run `Enable-WindowsOptionalFeature -Online -FeatureName Microsoft-Hyper-V -All` in a PowerShell of an administrator, then restart Windows"
	startService  = "run `Start-Service vmms` in a PowerShell of an administrator"
	startLoader   = "restart Windows; if that does not help, enable virtualization in the firmware and run `bcdedit /set hypervisorlaunchtype auto` as an administrator"
)

// Probe implements backend.Backend.
func (b *Backend) Probe(ctx context.Context, p backend.Progress) (backend.Report, error) {
	var r backend.Report
	missing := func(what, fix string) {
		r.Problems = append(r.Problems, backend.Problem{What: what, Fix: fix, Fatal: true})
	}
	p.Report("probe", "asking Windows about Hyper-V")
	h, err := b.askHost(ctx)
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	if err != nil {
		f := fault.From(err)
		what := f.Message
		if f.Cause != "" {
			what += ": " + f.Cause
		}
		fix := "run `sandboxforge doctor` again"
		if len(f.NextSteps) > 0 {
			fix = f.NextSteps[0]
		}
		missing(what, fix)
		return r, nil
	}
	module, major := h.module()
	r.Version = strings.TrimSpace(fmt.Sprintf("%s build %s, Hyper-V module %s", h.Caption, h.Build, module))
	allowed := h.Administrator || h.Member
	ready := h.VMMS == "Running" && module != "" && allowed
	switch {
	case h.home():
		missing("this edition of Windows has no Hyper-V: "+h.Caption, "use Windows Pro, Enterprise or Education, or the Linux build of SandboxForge inside WSL2")
	case module == "":
		missing("the Hyper-V module of PowerShell is not installed", enableFeature)
	case major < 2:
		missing("the Hyper-V module is of version "+module+"; automatic checkpoints cannot be turned off with it", "use Windows 10, Windows Server 2016, or newer")
	}
	switch {
	case h.home():
	case h.VMMS == "missing" && module != "":
		missing("Hyper-V itself is not installed, only its tools", enableFeature)
	case h.VMMS != "Running" && h.VMMS != "missing":
		missing("the service vmms of Hyper-V is "+h.VMMS, startService)
	case h.VMMS == "Running" && !h.Hypervisor:
		missing("the hypervisor does not run", startLoader)
	}
	if !allowed {
		f := noRights(nil)
		missing(f.Message+": "+f.Cause, f.NextSteps[0])
	}
	switch {
	case !ready:
	case h.SwitchError != "":
		missing("the virtual switches cannot be listed: "+h.SwitchError, startService)
	case !h.hasSwitch(b.c.SwitchName):
		missing(fmt.Sprintf("there is no virtual switch %q", b.c.SwitchName),
			"set HYPERV_SWITCH_NAME to one of "+h.switchNames()+", or make one with `New-VMSwitch` (Windows Server has no Default Switch)")
	default:
		r.Evidence = append(r.Evidence, fmt.Sprintf("The virtual switch %q is there.", b.c.SwitchName))
	}
	b.probeFiles(ctx, ready, missing)
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	r.Usable = len(r.Problems) == 0
	if r.Usable {
		r.Evidence = append(r.Evidence, "The hypervisor runs, and this account may use it.", "The base disk can be built on.")
	}
	return r, nil
}

// probeFiles looks at what the settings name.
func (b *Backend) probeFiles(ctx context.Context, ready bool, missing func(what, fix string)) {
	say := func(err error) {
		f := fault.From(err)
		what, fix := f.Message, "see docs/SETUP.md"
		if f.Cause != "" {
			what += ": " + f.Cause
		}
		if len(f.NextSteps) > 0 {
			fix = f.NextSteps[0]
		}
		missing(what, fix)
	}
	switch {
	case b.c.BaseVHDX == "":
		missing("HYPERV_BASE_VHDX is not set", "set it to a VHDX made of a generic cloud image, see docs/SETUP.md")
	case ready:
		if _, err := b.lookAtBase(ctx); err != nil {
			say(err)
		}
	}
	if err := os.MkdirAll(b.c.StorageDir, 0o700); err != nil {
		say(fault.Wrap(err, fault.BackendUnavailable, "the storage directory %s cannot be made", b.c.StorageDir).Because("%v", err).
			Next("set HYPERV_STORAGE_DIR to a directory that you may write to"))
	}
	if b.c.SSHKeyPath != "" {
		if _, err := b.operatorKey(); err != nil {
			say(err)
		}
	}
}
