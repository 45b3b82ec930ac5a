package standin

// bases are a class and those it derives from, as parameters name them.
func bases(class string) []string {
	switch class {
	case "VirtualMachine", "VMSnapshot":
		return []string{class, "VirtualMachineBase"}
	case "VMNetworkAdapter":
		return []string{class, "VMNetworkAdapterBase", "VMComponentObject"}
	case "HardDiskDrive", "DvdDrive":
		return []string{class, "VMComponentObject"}
	}
	return []string{class}
}

func enumOf(kind string, pairs ...any) []enum {
	var all []enum
	for i := 0; i+1 < len(pairs); i += 2 {
		all = append(all, enum{kind, pairs[i].(string), int64(pairs[i+1].(int))})
	}
	return all
}

// enums are the enumerations of parameters, from the module's documentation.
var enums = map[string][]enum{
	"BootDevice":           enumOf("BootDevice", "Floppy", 0, "CD", 1, "IDE", 2, "LegacyNetworkAdapter", 3, "NetworkAdapter", 4, "VHD", 5),
	"StartAction":          enumOf("StartAction", "Nothing", 2, "StartIfRunning", 3, "Start", 4),
	"StopAction":           enumOf("StopAction", "TurnOff", 2, "Save", 3, "ShutDown", 4),
	"CheckpointType":       enumOf("CheckpointType", "Disabled", 2, "Production", 3, "ProductionOnly", 4, "Standard", 5),
	"OnOffState":           enumOf("OnOffState", "On", 0, "Off", 1),
	"ControllerType":       enumOf("ControllerType", "IDE", 0, "SCSI", 1, "PMEM", 2),
	"VMSwitchType":         enumOf("VMSwitchType", "Private", 0, "Internal", 1, "External", 2),
	"SnapshotType":         enumOf("SnapshotType", "Standard", 0, "Recovery", 1, "Planned", 2, "Missing", 5, "Replica", 6),
	"State":                enumOf("State", "Unreachable", 0, "Incomplete", 1, "Probe", 2, "Delay", 3, "Stale", 4, "Reachable", 5, "Permanent", 6),
	"AddressFamily":        enumOf("AddressFamily", "IPv4", 2, "IPv6", 23),
	"IPProtocolPreference": enumOf("IPProtocolPreference", "IPv4", 0, "IPv6", 1),
}
