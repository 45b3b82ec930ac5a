package standin

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

func (w *World) findSwitch(name string) *Switch {
	for i := range w.Switches {
		if strings.EqualFold(w.Switches[i].Name, name) {
			return &w.Switches[i]
		}
	}
	return nil
}

func setVMFirmware(c *invocation) ([]any, *psError) {
	vms, err := c.machines()
	if err != nil {
		return nil, err
	}
	for _, v := range vms {
		if v.Generation != 2 {
			return nil, vmError(c, "InvalidOperation", "InvalidOperation", eInvalidArgument, "firmware is of generation 2")
		}
		if v.runs() {
			return nil, vmError(c, "InvalidState", "InvalidOperation", 0x80070015, "the virtual machine runs")
		}
		if c.has("EnableSecureBoot") {
			v.SecureBoot = c.str("EnableSecureBoot")
		}
		if c.has("SecureBootTemplate") {
			switch v.SecureBootTemplate = c.str("SecureBootTemplate"); v.SecureBootTemplate {
			case "MicrosoftWindows", "MicrosoftUEFICertificateAuthority", "OpenSourceShieldedVM":
			default:
				return nil, vmError(c, "InvalidParameter", "InvalidArgument", eInvalidArgument, "there is no such template")
			}
		}
		if c.has("FirstBootDevice") {
			path, ok := c.get("FirstBootDevice").(*object).ref.(string)
			if !ok || !hasDrive(v.Disks, path) && !hasDrive(v.DVDs, path) {
				return nil, vmError(c, "InvalidParameter", "InvalidArgument", eInvalidArgument, "the device is none of this virtual machine")
			}
			v.FirstBoot = path
		}
	}
	return c.passthru(vms), nil
}

func hasDrive(drives []Drive, path string) bool {
	for _, d := range drives {
		if d.Path == path {
			return true
		}
	}
	return false
}

func addVMHardDiskDrive(c *invocation) ([]any, *psError) {
	d := Drive{Path: c.str("Path"), Controller: "IDE", Number: c.num("ControllerNumber"), Location: c.num("ControllerLocation")}
	if c.has("ControllerType") {
		d.Controller = c.str("ControllerType")
	}
	return c.addDrive(d, "HardDiskDrive", func(v *VM) *[]Drive { return &v.Disks })
}

func addVMDvdDrive(c *invocation) ([]any, *psError) {
	d := Drive{Path: c.str("Path"), Controller: "SCSI", Number: c.num("ControllerNumber"), Location: c.num("ControllerLocation")}
	return c.addDrive(d, "DvdDrive", func(v *VM) *[]Drive { return &v.DVDs })
}

func (c *invocation) addDrive(d Drive, class string, list func(*VM) *[]Drive) ([]any, *psError) {
	vms, err := c.machines()
	if err != nil {
		return nil, err
	}
	var out []any
	for _, v := range vms {
		if v.Generation == 2 && d.Controller != "SCSI" || d.Number != 0 {
			return nil, vmError(c, "ObjectNotFound", "ObjectNotFound", eInvalidArgument, "there is no controller %s %d", d.Controller, d.Number)
		}
		for _, used := range append(append([]Drive{}, v.Disks...), v.DVDs...) {
			if used.Number == d.Number && used.Location == d.Location {
				if c.has("ControllerLocation") {
					return nil, vmError(c, "InvalidParameter", "InvalidArgument", eInvalidArgument, "the location %d is taken", d.Location)
				}
				d.Location++
			}
		}
		if _, serr := os.Stat(d.Path); d.Path != "" && serr != nil {
			return nil, vmError(c, "ObjectNotFound", "ObjectNotFound", eFileNotFound, "The system cannot find the file specified.")
		}
		if class == "HardDiskDrive" {
			if _, code := readDisk(d.Path); code != 0 {
				return nil, vmError(c, "OperationFailed", "NotSpecified", code, "the disk cannot be used")
			}
		} else if v.runs() && v.Generation == 1 {
			return nil, vmError(c, "InvalidState", "InvalidOperation", 0x80070015, "the virtual machine runs")
		}
		*list(v) = append(*list(v), d)
		if c.on("Passthru") {
			out = append(out, driveObject(class, v, d))
		}
	}
	return out, nil
}

func adapterObject(w *World, v *VM) *object {
	id := any(nil)
	if s := w.findSwitch(v.Switch); s != nil {
		id = s.ID
	}
	return &object{class: "VMNetworkAdapter", ref: v.ID, props: newObject("", "Name", "Network Adapter", "MacAddress", v.MAC, "DynamicMacAddressEnabled", !v.StaticMAC,
		"IPAddresses", w.addresses(v), "SwitchName", v.Switch, "SwitchId", id, "Connected", v.Switch != "", "Status", []any{}, "VMId", v.ID, "VMName", v.Name).props}
}

func getVMNetworkAdapter(c *invocation) ([]any, *psError) {
	if c.set != "VMName" && c.set != "VMObject" {
		return nil, unknownHere("Get-VMNetworkAdapter with the parameter set %s", c.set)
	}
	vms, err := c.machines()
	if err != nil {
		return nil, err
	}
	var out []any
	for _, v := range vms {
		out = append(out, adapterObject(c.e.world, v))
	}
	return out, nil
}

// adapters are the VMs whose adapters a cmdlet means.
func (c *invocation) adapters() ([]*VM, *psError) {
	if !c.has("VMNetworkAdapter") {
		return c.machines()
	}
	var out []*VM
	for _, o := range elements(c.get("VMNetworkAdapter")) {
		v := c.e.world.Find(string(o.(*object).ref.(guid)))
		if v == nil {
			return nil, vmError(c, "ObjectNotFound", "ObjectNotFound", 0x80041002, "the adapter's virtual machine is gone")
		}
		out = append(out, v)
	}
	return out, nil
}

var macPattern = regexp.MustCompile(`^[0-9A-F]{12}$`)

func setVMNetworkAdapter(c *invocation) ([]any, *psError) {
	vms, err := c.adapters()
	if err != nil {
		return nil, err
	}
	for _, v := range vms {
		if !c.has("StaticMacAddress") {
			continue
		}
		mac := strings.ToUpper(strings.NewReplacer(":", "", "-", "").Replace(c.str("StaticMacAddress")))
		if !macPattern.MatchString(mac) {
			return nil, vmError(c, "InvalidParameter", "InvalidArgument", eInvalidArgument, "%q is no MAC address", mac)
		}
		if v.runs() {
			return nil, vmError(c, "InvalidState", "InvalidOperation", 0x80070015, "the virtual machine runs")
		}
		v.MAC, v.StaticMAC = mac, true
	}
	return nil, nil
}

func connectVMNetworkAdapter(c *invocation) ([]any, *psError) {
	vms, err := c.adapters()
	if err != nil {
		return nil, err
	}
	s := c.e.world.findSwitch(c.str("SwitchName"))
	if s == nil {
		return nil, vmError(c, "ObjectNotFound", "ObjectNotFound", eInvalidArgument, "there is no switch %q", c.str("SwitchName"))
	}
	for _, v := range vms {
		v.Switch = s.Name
	}
	return nil, nil
}

func switchObject(s Switch) *object {
	return newObject("VMSwitch", "Id", s.ID, "Name", s.Name, "SwitchType", member1("VMSwitchType", s.Type), "Notes", "")
}

func getVMSwitch(c *invocation) ([]any, *psError) {
	w := c.e.world
	if w.Faults.Rights == "none" {
		return nil, nil
	}
	var out []any
	for _, s := range w.Switches {
		if c.has("Name") && !like(s.Name, c.str("Name")) || c.has("Id") && !equal(collect(elements(c.get("Id"))), s.ID) {
			continue
		}
		out = append(out, switchObject(s))
	}
	if len(out) == 0 && (c.has("Name") && !strings.Contains(c.str("Name"), "*") || c.has("Id")) {
		return nil, vmError(c, "ObjectNotFound", "ObjectNotFound", 0x80041002, "there is no such switch")
	}
	return out, nil
}

func snapshotObject(v *VM, s *Checkpoint) *object {
	disks := []any{}
	for _, d := range s.Disks {
		disks = append(disks, driveObject("HardDiskDrive", v, d))
	}
	return &object{class: "VMSnapshot", ref: s.ID, props: newObject("", "Id", s.ID, "Name", s.Name, "VMId", v.ID, "VMName", v.Name,
		"SnapshotType", member1("SnapshotType", "Standard"), "IsAutomaticCheckpoint", false, "ParentSnapshotId", nil, "HardDrives", disks).props}
}

func getVMSnapshot(c *invocation) ([]any, *psError) {
	vms, err := c.machines()
	if err != nil {
		return nil, err
	}
	var out []any
	for _, v := range vms {
		for _, s := range v.Snapshots {
			out = append(out, snapshotObject(v, s))
		}
	}
	return out, nil
}

func checkpointVM(c *invocation) ([]any, *psError) {
	vms, err := c.machines()
	if err != nil {
		return nil, err
	}
	for _, v := range vms {
		if v.CheckpointType == "Disabled" {
			return nil, vmError(c, "OperationFailed", "InvalidOperation", eFail, "Checkpoints have been disabled")
		}
		v.checkpoint(c.str("SnapshotName"))
	}
	return nil, nil
}

// checkpoint leaves the VM with a new disk on each of its old ones.
func (v *VM) checkpoint(name string) {
	s := &Checkpoint{ID: newGUID(), Name: name, Saved: v.runs(), Disks: append([]Drive{}, v.Disks...)}
	for i, d := range v.Disks {
		p, _ := readDisk(d.Path)
		base := strings.TrimSuffix(filepath.Base(d.Path), filepath.Ext(d.Path))
		path := filepath.Join(filepath.Dir(d.Path), base+"_"+strings.ToUpper(string(newGUID()))+".avhdx")
		writeDisk(path, disk{ID: newGUID(), Size: p.Size, Kind: "Differencing", Parent: d.Path, ParentID: p.ID})
		v.Disks[i].Path = path
	}
	v.Snapshots = append(v.Snapshots, s)
}

func restoreVMSnapshot(c *invocation) ([]any, *psError) {
	if !c.has("Confirm") || c.on("Confirm") {
		return nil, prompted(c)
	}
	return nil, unknownHere("Restore-VMSnapshot")
}

func removeVMSnapshot(c *invocation) ([]any, *psError) {
	vms, err := c.machines()
	if err != nil {
		return nil, err
	}
	for _, v := range vms {
		if len(v.Snapshots) > 0 { // all are removed; the disks merge into the oldest
			v.Disks = append([]Drive{}, v.Snapshots[0].Disks...)
			v.Snapshots = nil
		}
	}
	return nil, nil
}

// prompted is a question that -NonInteractive makes an error.
func prompted(c *invocation) *psError {
	e := vmError(c, "InvalidOperation", "InvalidOperation", eFail, "Windows PowerShell is in NonInteractive mode. Read and Prompt functionality is not available.")
	e.exception = "System.Management.Automation.PSInvalidOperationException"
	return e
}
