package standin

import (
	"fmt"
	"strings"
)

func getModule(c *invocation) ([]any, *psError) {
	w := c.e.world
	if !c.on("ListAvailable") {
		return nil, unknownHere("Get-Module without -ListAvailable")
	}
	var out []any
	for _, n := range elements(c.get("Name")) {
		if strings.EqualFold(text(n), "Hyper-V") && !w.Faults.ModuleMissing {
			out = append(out, newObject("PSModuleInfo", "Name", "Hyper-V", "Version", "2.0.0.0"), newObject("PSModuleInfo", "Name", "Hyper-V", "Version", "1.1"))
		}
	}
	return out, nil
}

func getService(c *invocation) ([]any, *psError) {
	f := c.e.world.Faults
	var out []any
	for _, n := range elements(c.get("Name")) {
		if !strings.EqualFold(text(n), "vmms") || f.VmmsMissing {
			return nil, &psError{
				id: "NoServiceFoundForGivenName,Microsoft.PowerShell.Commands.GetServiceCommand", category: "ObjectNotFound",
				exception: "Microsoft.PowerShell.Commands.ServiceCommandException", hresult: hr(0x80131501),
				message: fmt.Sprintf("Cannot find any service with service name '%s'.", text(n)), command: "Get-Service",
			}
		}
		status := enum{"ServiceControllerStatus", "Running", 4}
		if f.VmmsStopped {
			status = enum{"ServiceControllerStatus", "Stopped", 1}
		}
		out = append(out, newObject("System.ServiceProcess.ServiceController", "Name", "vmms", "Status", status))
	}
	return out, nil
}

func getCimInstance(c *invocation) ([]any, *psError) {
	w := c.e.world
	switch strings.ToLower(c.str("ClassName")) {
	case "win32_operatingsystem":
		return []any{newObject("CimInstance", "Caption", w.Edition, "BuildNumber", "22631", "OperatingSystemSKU", w.SKU, "ProductType", int64(1), "Version", "10.0.22631", "TotalVisibleMemorySize", w.MemoryMiB<<10)}, nil
	case "win32_computersystem":
		return []any{newObject("CimInstance", "HypervisorPresent", !w.Faults.NoHypervisor, "Name", "HOST")}, nil
	}
	return nil, unknownHere("Get-CimInstance %s", c.str("ClassName"))
}

func getNetNeighbor(c *invocation) ([]any, *psError) {
	w := c.e.world
	var rows []Neighbor
	rows = append(rows, w.Neighbors...)
	if !w.Faults.NoNeighbors {
		for _, v := range w.VMs {
			if w.reachable(v) {
				rows = append(rows, Neighbor{v.Address, dashed(v.MAC), "Stale"}, Neighbor{"fe80::1", dashed(v.MAC), "Reachable"})
			}
		}
	}
	var out []any
	for _, n := range rows {
		if v6 := strings.Contains(n.Address, ":"); c.has("AddressFamily") && v6 != equal(collect(elements(c.get("AddressFamily"))), "IPv6") {
			continue
		}
		match := !c.has("LinkLayerAddress")
		for _, m := range elements(c.get("LinkLayerAddress")) {
			match = match || strings.EqualFold(text(m), n.MAC)
		}
		if match {
			out = append(out, newObject("CimInstance#MSFT_NetNeighbor", "IPAddress", n.Address, "LinkLayerAddress", n.MAC, "State", member1("State", n.State), "InterfaceAlias", "vEthernet (Default Switch)"))
		}
	}
	if len(out) == 0 && c.has("LinkLayerAddress") {
		return nil, &psError{
			id: "CmdletizationQuery_NotFound_LinkLayerAddress,Get-NetNeighbor", category: "ObjectNotFound",
			exception: "Microsoft.PowerShell.Cmdletization.Cim.CimJobException", hresult: hr(0x80131500), message: "No matching MSFT_NetNeighbor objects found", command: "Get-NetNeighbor",
		}
	}
	return out, nil
}

// dashed writes 525400123456 as 52-54-00-12-34-56.
func dashed(mac string) string {
	var parts []string
	for i := 0; i+2 <= len(mac); i += 2 {
		parts = append(parts, mac[i:i+2])
	}
	return strings.Join(parts, "-")
}

func getWinEvent(c *invocation) ([]any, *psError) {
	if c.set != "HashQuerySet" {
		return nil, unknownHere("Get-WinEvent with the parameter set %s", c.set)
	}
	var out []any
	for _, f := range elements(c.get("FilterHashtable")) {
		h := f.(*hash)
		for _, ev := range c.e.world.Events {
			fits := func(key string, v any) bool {
				want, ok := h.values[key]
				if !ok {
					return true
				}
				for _, x := range elements(want) {
					if equal(x, v) {
						return true
					}
				}
				return false
			}
			if fits("logname", ev.Log) && fits("level", ev.Level) {
				out = append(out, newObject("System.Diagnostics.Eventing.Reader.EventLogRecord", "Id", ev.ID, "Level", ev.Level, "Message", ev.Message, "LogName", ev.Log, "TimeCreated", ev.At))
			}
		}
	}
	if len(out) == 0 {
		return nil, &psError{
			id: "NoMatchingEventsFound,Microsoft.PowerShell.Commands.GetWinEventCommand", category: "ObjectNotFound", exception: "System.Exception",
			hresult: hr(0x80131500), message: "No events were found that match the specified selection criteria.", command: "Get-WinEvent",
		}
	}
	return out, nil
}
