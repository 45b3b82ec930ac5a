package hyperv

import (
	"context"
	"errors"
	"time"

	"sandboxforge/internal/backend/hyperv/powershell"
	"sandboxforge/internal/fault"
)

// Limits of the scripts; a Hyper-V call takes a second or so, and twenty on a
// bad day.
const (
	queryLimit  = 90 * time.Second
	changeLimit = 3 * time.Minute
)

// machineInfo is what a script says of a machine.
type machineInfo struct {
	ID     string                  `json:"id"`
	Name   string                  `json:"name"`
	Notes  string                  `json:"notes"`
	State  string                  `json:"state"`
	Uptime int64                   `json:"uptime"` // seconds
	Disks  powershell.List[string] `json:"disks"`
}

// runs: the machine holds its memory and disks. What a state is called never
// changes; the numbers of states do.
func (m machineInfo) runs() bool {
	switch m.State {
	case "Off", "OffCritical", "Saved", "SavedCritical", "FastSaved", "FastSavedCritical":
		return false
	}
	return true
}

type machineList struct {
	VMs    powershell.List[machineInfo] `json:"vms"`
	Rights bool                         `json:"rights"`
	VMMS   string                       `json:"vmms"`
}

// believable: that something is not on the list means that it is not there.
func (l machineList) believable() error {
	switch {
	case l.VMMS != "Running":
		return fault.New(fault.BackendUnavailable, "the Hyper-V service vmms is not running (%.40s)", l.VMMS).
			Next("run `Start-Service vmms` in a PowerShell of an administrator")
	case !l.Rights:
		return noRights(nil)
	}
	return nil
}

func noRights(err error) *fault.Error {
	return fault.Wrap(err, fault.BackendUnavailable, "this account may not use Hyper-V").
		Because("it is neither an administrator with full rights nor a member of the group Hyper-V Administrators (S-1-5-32-578)").
		Next("run `Add-LocalGroupMember -SID S-1-5-32-578 -Member $env:USERNAME` in a PowerShell of an administrator, then sign out and in again")
}

// call runs a script and turns what Hyper-V said into a fault.
func (b *Backend) call(ctx context.Context, name string, limit time.Duration, parameters map[string]any, v any) error {
	err := b.shells.Run(ctx, powershell.Request{Name: name, Script: script(name), Parameters: parameters, Limit: limit}, v)
	return explain(name, err)
}

// list asks for our machines: those with our marker, and those of the names.
func (b *Backend) list(ctx context.Context, names []string) ([]machineInfo, error) {
	store, err := b.storeID()
	if err != nil {
		return nil, err
	}
	if names == nil {
		names = []string{}
	}
	var l machineList
	if err := b.call(ctx, "list", b.queryLimit, map[string]any{"store": store, "names": names}, &l); err != nil {
		return nil, err
	}
	return l.VMs, l.believable()
}

// find asks for one machine; found is false if it is not there.
func (b *Backend) find(ctx context.Context, id string) (m machineInfo, found bool, err error) {
	var l machineList
	if err := b.call(ctx, "inspect", b.queryLimit, map[string]any{"id": id}, &l); err != nil {
		return m, false, err
	}
	if len(l.VMs) > 0 {
		return l.VMs[0], true, nil
	}
	return m, false, l.believable()
}

// HRESULTs that mean something to us, of Win32 and of virtual disks.
const (
	codeAccessDenied  = 0x80070005
	codeSharing       = 0x80070020
	codeFull          = 0x80070070
	codeExists        = 0x80070050
	codeNoMemory      = 0x8007000E
	codeNoResources   = 0x800705AA
	codeFileSystem    = 0x80070299
	codeNoParent      = 0xC03A000D
	codeIDMismatch    = 0xC03A000E
	codeTimeMismatch  = 0xC03A000F
	codeNotADisk      = 0xC03A0015
	codeParentDenied  = 0xC03A0016
	codeSizeMismatch  = 0xC03A0017
	codeDiskLimit     = 0xC03A001A
	foreignIdentifier = "SandboxForge.Foreign" // thrown by our scripts
)

// explain makes a fault of what a script failed with. It goes by identifiers,
// categories and codes; messages are in the language of Windows.
func explain(what string, err error) error {
	var e *powershell.Error
	if !errors.As(err, &e) {
		if errors.Is(err, powershell.ErrUnknown) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			return fault.Wrap(err, fault.OutcomeUnknown, "Hyper-V gave no answer (%s)", what).
				Because("the service vmms hangs, or Windows PowerShell was ended").
				Next("call list_instances to see what is there, and restart the service vmms if this happens again")
		}
		return err
	}
	f := func(code fault.Code, format string, args ...any) *fault.Error {
		return fault.Wrap(err, code, format, args...)
	}
	switch {
	case e.Kind() == foreignIdentifier:
		return f(fault.BackendCommandFailed, "a machine that is not SandboxForge's was left alone").
			Because("its notes, where SandboxForge keeps its marker, were changed").
			Next("remove the machine with Hyper-V Manager if it is not needed")
	case e.Category == "PermissionDenied" || e.Kind() == "AccessDenied" || e.HasCode(codeAccessDenied):
		return noRights(err)
	case e.Kind() == "CommandNotFoundException":
		return f(fault.BackendUnavailable, "the Hyper-V module of PowerShell is missing").
			Next("run `Enable-WindowsOptionalFeature -Online -FeatureName Microsoft-Hyper-V -All` in a PowerShell of an administrator, then restart Windows")
	case e.Kind() == "OutOfMemory" || e.HasCode(codeNoMemory, codeNoResources):
		return f(fault.InsufficientHostResources, "Hyper-V has too little memory for the VM").
			Because("the memory of VMs is static: all of it is taken at the start").
			Next("destroy_instance what is not needed, or ask for less memory (vm.memory_gib)")
	case e.HasCode(codeFull):
		return f(fault.InsufficientDisk, "the disk with the VMs is full").
			Next("free space, or set HYPERV_STORAGE_DIR to another disk")
	case e.HasCode(codeFileSystem):
		return f(fault.BackendUnavailable, "the file system of the storage directory cannot hold virtual disks").
			Next("set HYPERV_STORAGE_DIR to a directory on NTFS or ReFS")
	case e.HasCode(codeDiskLimit):
		return f(fault.BackendUnavailable, "Hyper-V refuses the base disk, or the directory that it lies in").
			Because("the file is sparse, compressed or encrypted, or on ReFS with integrity streams").
			Next("run `fsutil sparse setflag FILE 0`, `compact /u FILE` and `cipher /d FILE` for HYPERV_BASE_VHDX")
	case e.HasCode(codeNoParent, codeIDMismatch, codeTimeMismatch, codeParentDenied, codeSizeMismatch, codeNotADisk):
		return f(fault.BackendCommandFailed, "the VM's disk no longer fits the base disk").
			Because("the base disk was moved, replaced, resized or written to after the VM was made").
			Next("put the old HYPERV_BASE_VHDX back, or destroy_instance and create a new one")
	case e.HasCode(codeSharing):
		return f(fault.BackendCommandFailed, "a file of the VM is in use by another process").
			Because("antivirus software or a backup has it open").
			Next("exclude the storage directory and vmms.exe, vmwp.exe, vmcompute.exe from scans, then try again")
	}
	return f(fault.BackendCommandFailed, "Hyper-V refused: %s (%s)", what, e.Command).
		Because("%s", e.Message).
		Next("look into Hyper-V Manager and the event log Microsoft-Windows-Hyper-V-VMMS-Admin on the host")
}
