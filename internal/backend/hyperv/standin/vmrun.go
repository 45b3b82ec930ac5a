package standin

import (
	"fmt"
	"os"
	"strings"
	"time"
)

func startVM(c *invocation) ([]any, *psError) {
	vms, err := c.machines()
	if err != nil {
		return nil, err
	}
	w := c.e.world
	for _, v := range vms {
		switch v.State {
		case "Running", "Starting":
			c.warn("The virtual machine is already in the specified state.")
			continue
		case "Off", "Saved", "OffCritical":
		default:
			return nil, vmError(c, "InvalidState", "InvalidOperation", 0x80070015, "'%s' is %s", v.Name, v.State)
		}
		if err := c.canStart(w, v); err != nil {
			return nil, err
		}
		if v.AutomaticCheckpoints {
			v.checkpoint("Automatic Checkpoint - " + v.Name)
		}
		w.Next++
		v.Address = fmt.Sprintf("172.28.%d.%d", w.Next/200%200, 10+w.Next%200)
		v.StartedAt = time.Now()
		if w.Real != nil {
			if err := w.Real.boot(v); err != nil {
				return nil, unknownHere("QEMU: %v", err)
			}
		}
		v.State, v.Then = "Running", ""
		if d := w.Faults.StartTime; d > 0 {
			v.State, v.Then, v.Until = "Starting", "Running", time.Now().Add(d)
		}
	}
	return c.passthru(vms), nil
}

// canStart is what Hyper-V checks when a VM starts.
func (c *invocation) canStart(w *World, v *VM) *psError {
	for _, d := range v.Disks {
		if code := checkChain(d.Path); code != 0 {
			return vmError(c, "OperationFailed", "NotSpecified", code, "'%s' failed to start: the attachment %s", v.Name, d.Path)
		}
		for _, other := range w.VMs {
			if other.ID != v.ID && other.runs() && hasDrive(other.Disks, d.Path) {
				return vmError(c, "OperationFailed", "NotSpecified", eSharing, "the disk %s is in use", d.Path)
			}
		}
	}
	for _, d := range v.DVDs {
		if _, err := os.Stat(d.Path); d.Path != "" && err != nil {
			return vmError(c, "OperationFailed", "NotSpecified", eFileNotFound, "the attachment %s", d.Path)
		}
	}
	if v.Switch != "" && w.findSwitch(v.Switch) == nil {
		return vmError(c, "OperationFailed", "NotSpecified", eFail, "the switch %q is gone", v.Switch)
	}
	if v.StaticMAC {
		var first byte
		fmt.Sscanf(v.MAC[:2], "%x", &first)
		if first&1 != 0 {
			return vmError(c, "OperationFailed", "NotSpecified", eFail, "failed to modify device 'Synthetic Ethernet Port': %s is no unicast address", v.MAC)
		}
	} else {
		v.MAC = fmt.Sprintf("00155D%06X", w.Next)
	}
	used := v.Memory
	for _, other := range w.VMs {
		if other.runs() {
			used += other.Memory
		}
	}
	if used > w.MemoryMiB<<20 {
		e := vmError(c, "OutOfMemory", "FromStdErr", eOutOfMemory, "Not enough memory in the system to start the virtual machine %s.", v.Name)
		return e
	}
	return nil
}

// boots: what is in the guest comes up. Secure Boot with the template for
// Windows lets no Linux boot.
func (v *VM) boots() bool {
	return len(v.Disks) > 0 && (v.SecureBoot == "Off" || v.SecureBootTemplate != "MicrosoftWindows")
}

// reachable: the guest has its address by now.
func (w *World) reachable(v *VM) bool {
	return v.State == "Running" && v.boots() && v.Switch != "" && time.Since(v.StartedAt) >= w.Faults.AddressDelay
}

// addresses is what the guest's integration service tells.
func (w *World) addresses(v *VM) []any {
	if w.Faults.NoKVP || !w.reachable(v) {
		return []any{}
	}
	if time.Since(v.StartedAt) < w.Faults.AddressDelay*5/4 {
		return []any{"fe80::5054:ff:fe12:3456", "169.254.7.7"} // IPv4 comes later
	}
	return []any{"fe80::5054:ff:fe12:3456", "169.254.7.7", v.Address}
}

func stopVM(c *invocation) ([]any, *psError) {
	vms, err := c.machines()
	if err != nil {
		return nil, err
	}
	w := c.e.world
	for _, v := range vms {
		if !c.on("TurnOff") && !c.on("Force") {
			return nil, prompted(c)
		}
		if !c.on("TurnOff") && !c.on("AsJob") {
			return nil, unknownHere("Stop-VM without -TurnOff waits for the guest, for minutes")
		}
		if v.State == "Off" {
			c.warn("The virtual machine is already in the specified state.")
			continue
		}
		if !c.on("TurnOff") && w.Real != nil {
			w.Real.press(v)
			continue
		}
		if v.PID != 0 {
			if err := w.Real.cut(v); err != nil {
				return nil, unknownHere("QEMU: %v", err)
			}
		}
		if !c.on("TurnOff") {
			if v.State == "Running" && v.boots() && !w.Faults.NoShutdown {
				v.State, v.Then, v.Until = "Stopping", "Off", time.Now().Add(20*time.Millisecond)
			}
			continue
		}
		v.State, v.Then = "Off", ""
		if d := w.Faults.StopTime; d > 0 {
			v.State, v.Then, v.Until = "Stopping", "Off", time.Now().Add(d)
		}
	}
	return c.passthru(vms), nil
}

func removeVM(c *invocation) ([]any, *psError) {
	vms, err := c.machines()
	if err != nil {
		return nil, err
	}
	if !c.on("Force") && (!c.has("Confirm") || c.on("Confirm")) {
		return nil, prompted(c)
	}
	w := c.e.world
	for _, v := range vms {
		if v.runs() {
			return nil, vmError(c, "InvalidState", "InvalidOperation", 0x80070015, "'%s' is %s", v.Name, v.State)
		}
		if w.Real != nil {
			w.Real.release(v)
		}
		for i, o := range w.VMs {
			if o == v {
				w.VMs = append(w.VMs[:i], w.VMs[i+1:]...)
				break
			}
		}
		for _, ext := range []string{".vmcx", ".vmrs", ".vmgs"} {
			os.Remove(v.Path + "/Virtual Machines/" + strings.ToUpper(string(v.ID)) + ext)
		}
		// Disks stay. So do the folders.
	}
	return nil, nil
}
