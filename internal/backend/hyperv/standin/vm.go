package standin

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

// vmStates are the states as the newest module numbers them; older ones number
// the critical ones otherwise, which is why scripts exchange names.
var vmStates = map[string]int64{
	"Other": 1, "Running": 2, "Off": 3, "Stopping": 4, "Saved": 6, "Paused": 9, "Starting": 10, "Reset": 11, "Saving": 32773,
	"RunningCritical": 32785, "OffCritical": 32786, "PausedCritical": 32789,
}

func vmObject(w *World, v *VM) *object {
	disks := func() []any {
		out := []any{}
		for _, d := range v.Disks {
			out = append(out, driveObject("HardDiskDrive", v, d))
		}
		return out
	}
	dvds := []any{}
	for _, d := range v.DVDs {
		dvds = append(dvds, driveObject("DvdDrive", v, d))
	}
	uptime := int64(0)
	if v.runs() {
		uptime = int64(time.Since(v.StartedAt))
	}
	return &object{class: "VirtualMachine", ref: v.ID, props: newObject("",
		"Id", v.ID, "VMId", v.ID, "Name", v.Name, "VMName", v.Name, "State", enum{"VMState", v.State, vmStates[v.State]}, "Status", "Operating normally",
		"Notes", v.Notes, "Path", v.Path, "ConfigurationLocation", v.Path, "SnapshotFileLocation", v.Path, "Generation", v.Generation, "Version", "10.0",
		"ProcessorCount", v.Processors, "MemoryStartup", v.Memory, "DynamicMemoryEnabled", v.DynamicMemory,
		"AutomaticCheckpointsEnabled", v.AutomaticCheckpoints, "CheckpointType", member1("CheckpointType", v.CheckpointType),
		"AutomaticStartAction", member1("StartAction", v.StartAction), "AutomaticStopAction", member1("StopAction", v.StopAction),
		"HardDrives", disks(), "DVDDrives", dvds, "Uptime", newObject("TimeSpan", "TotalSeconds", uptime/1e9), "IsClustered", v.Clustered,
		"ComputerName", "HOST", "ParentSnapshotId", nil,
	).props}
}

func member1(kind, name string) enum {
	for _, m := range enums[kind] {
		if m.name == name {
			return m
		}
	}
	return enum{kind, name, 0}
}

func driveObject(class string, v *VM, d Drive) *object {
	return &object{class: class, ref: d.Path, props: newObject("", "Path", d.Path, "ControllerType", member1("ControllerType", d.Controller),
		"ControllerNumber", d.Number, "ControllerLocation", d.Location, "VMId", v.ID, "VMName", v.Name, "DiskNumber", nil).props}
}

// machines are the VMs that the parameters -VM or -Name mean.
func (c *invocation) machines() ([]*VM, *psError) {
	w := c.e.world
	var out []*VM
	for _, o := range elements(c.get("VM")) {
		if isNull(o) {
			continue
		}
		v := w.Find(string(o.(*object).ref.(guid)))
		if v == nil {
			return nil, vmError(c, "ObjectNotFound", "ObjectNotFound", 0x80041002, "Hyper-V was unable to find the virtual machine")
		}
		out = append(out, v)
	}
	for _, key := range []string{"Name", "VMName"} {
		if c.has("VM") || !c.has(key) {
			continue
		}
		for _, n := range elements(c.get(key)) {
			found := false
			for _, v := range w.VMs {
				if like(v.Name, text(n)) {
					out, found = append(out, v), true
				}
			}
			if !found && !strings.ContainsAny(text(n), "*?") {
				id, category := "ObjectNotFound", "ObjectNotFound"
				if c.cmdlet.name == "Get-VM" {
					id, category = "InvalidParameter", "InvalidArgument"
				}
				return nil, vmError(c, id, category, 0x80041002, "Hyper-V was unable to find a virtual machine with name %q.", text(n))
			}
		}
	}
	return out, nil
}

func (c *invocation) passthru(vms []*VM) []any {
	var out []any
	if c.on("Passthru") {
		for _, v := range vms {
			out = append(out, vmObject(c.e.world, v))
		}
	}
	return out
}

func getVM(c *invocation) ([]any, *psError) {
	w := c.e.world
	if w.Faults.Rights == "none" {
		return nil, nil // no error, and nothing to see
	}
	var out []any
	if c.set == "Id" {
		v := w.Find(string(c.get("Id").(guid)))
		if v == nil {
			return nil, vmError(c, "ObjectNotFound", "ObjectNotFound", 0x80041002, "Hyper-V was unable to find a virtual machine with id %s.", c.str("Id"))
		}
		return []any{vmObject(w, v)}, nil
	}
	vms := w.VMs
	if c.has("Name") {
		var err *psError
		if vms, err = c.machines(); err != nil {
			return nil, err
		}
	}
	for _, v := range vms {
		out = append(out, vmObject(w, v))
	}
	return out, nil
}

func newVM(c *invocation) ([]any, *psError) {
	w := c.e.world
	v := &VM{
		ID: newGUID(), Name: "New Virtual Machine", State: "Off", Generation: 1, Processors: 1, Memory: 512 << 20, DynamicMemory: true,
		AutomaticCheckpoints: true, CheckpointType: "Production", StartAction: "StartIfRunning", StopAction: "Save",
		SecureBoot: "On", SecureBootTemplate: "MicrosoftWindows", MAC: "000000000000",
	}
	if c.has("Name") {
		v.Name = c.str("Name")
	}
	if c.has("Generation") {
		v.Generation = c.num("Generation")
	}
	if c.has("MemoryStartupBytes") {
		v.Memory = c.num("MemoryStartupBytes")
	}
	boot := c.str("BootDevice")
	switch {
	case v.Name == "" || len(v.Name) > 100:
		return nil, vmError(c, "InvalidParameter", "InvalidArgument", eInvalidArgument, "the name is not valid")
	case v.Generation != 1 && v.Generation != 2:
		return nil, vmError(c, "InvalidParameter", "InvalidArgument", eInvalidArgument, "there is no generation %d", v.Generation)
	case v.Generation == 2 && (boot == "Floppy" || boot == "LegacyNetworkAdapter" || boot == "IDE"):
		return nil, vmError(c, "InvalidParameter", "InvalidArgument", eInvalidArgument, "generation 2 does not boot from %s", boot)
	case !goodMemory(v.Memory):
		return nil, vmError(c, "InvalidParameter", "InvalidArgument", eInvalidArgument, "%d bytes of memory", v.Memory)
	}
	if c.has("SwitchName") {
		if v.Switch = c.str("SwitchName"); w.findSwitch(v.Switch) == nil {
			return nil, vmError(c, "InvalidParameter", "InvalidArgument", eInvalidArgument, "there is no switch %q", v.Switch)
		}
	}
	if c.has("VHDPath") || c.has("NewVHDPath") {
		return nil, unknownHere("New-VM with a disk")
	}
	path := `C:\ProgramData\Microsoft\Windows\Hyper-V`
	if c.has("Path") {
		path = c.str("Path")
		if _, err := os.Stat(path); err != nil {
			return nil, vmError(c, "ObjectNotFound", "ObjectNotFound", ePathNotFound, "The system cannot find the path specified.")
		}
		v.Path = filepath.Join(path, v.Name)
		files := filepath.Join(v.Path, "Virtual Machines")
		if err := os.MkdirAll(files, 0o700); err != nil {
			return nil, unknownHere("New-VM: %v", err)
		}
		for _, ext := range []string{".vmcx", ".vmrs", ".vmgs"} {
			os.WriteFile(filepath.Join(files, strings.ToUpper(string(v.ID))+ext), []byte("stand-in"), 0o600)
		}
	} else {
		v.Path = path
	}
	w.VMs = append(w.VMs, v)
	return []any{vmObject(w, v)}, nil
}

// goodMemory: static memory is a multiple of 2 MiB, from 32 MiB.
func goodMemory(n int64) bool { return n >= 32<<20 && n%(2<<20) == 0 && n <= 12<<40 }

func setVM(c *invocation) ([]any, *psError) {
	vms, err := c.machines()
	if err != nil {
		return nil, err
	}
	for _, v := range vms {
		if v.runs() && (c.has("ProcessorCount") || c.has("StaticMemory") || c.has("DynamicMemory") || c.has("AutomaticStartAction") || c.has("AutomaticStopAction")) {
			return nil, vmError(c, "InvalidState", "InvalidOperation", 0x80070015, "the virtual machine runs")
		}
		if c.on("StaticMemory") && c.on("DynamicMemory") {
			return nil, vmError(c, "InvalidParameter", "InvalidArgument", eInvalidArgument, "memory is static or dynamic")
		}
		if c.has("MemoryStartupBytes") {
			if v.Memory = c.num("MemoryStartupBytes"); !goodMemory(v.Memory) {
				return nil, vmError(c, "InvalidParameter", "InvalidArgument", eInvalidArgument, "%d bytes of memory", v.Memory)
			}
		}
		if c.has("ProcessorCount") {
			if v.Processors = c.num("ProcessorCount"); v.Processors < 1 || v.Processors > 240 {
				return nil, vmError(c, "InvalidParameter", "InvalidArgument", eInvalidArgument, "%d processors", v.Processors)
			}
		}
		if c.on("StaticMemory") {
			v.DynamicMemory = false
		}
		if c.on("DynamicMemory") {
			v.DynamicMemory = true
		}
		for key, field := range map[string]*string{
			"Notes": &v.Notes, "NewVMName": &v.Name, "AutomaticStartAction": &v.StartAction, "AutomaticStopAction": &v.StopAction, "CheckpointType": &v.CheckpointType,
		} {
			if c.has(key) {
				*field = c.str(key)
			}
		}
		if c.has("AutomaticCheckpointsEnabled") {
			v.AutomaticCheckpoints = c.on("AutomaticCheckpointsEnabled")
		}
	}
	return c.passthru(vms), nil
}
