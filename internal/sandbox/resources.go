package sandbox

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/host"
	"sandboxforge/internal/store"
)

// What must stay free beside the VM itself.
const (
	memoryHeadroomGiB = 0.5
	diskHeadroomGiB   = 2.0
	gib               = 1 << 30
)

// hostCheck decides whether the host can carry one more VM. It is asked inside
// the transaction that inserts the lease, so that two creates cannot both
// count on the same memory.
type hostCheck struct {
	workspaceRoot string
	config        map[string]any
	vm            config.VMConfig
	cpus          int
	available     int64 // bytes of memory the kernel could give now
	diskFree      int64
	touched       map[string]int64 // bytes that live VMs use already, by VM name
	// given: the VM's size is that of the snapshot in which it begins.
	given bool
	// template: the VM is made into one, and vm.DiskGiB is what its state takes.
	template bool
}

// decide returns nil or INSUFFICIENT_HOST_RESOURCES with every failed check.
func (c hostCheck) decide(u store.Usage) error {
	// The kernel's figure already lacks what live VMs have touched; what they
	// were promised and have not touched yet is spoken for.
	available := c.available
	for _, l := range u.Live {
		if untouched := l.MemoryMiB<<20 - c.touched[l.BackendInstanceName]; untouched > 0 {
			available -= untouched
		}
	}
	available = max(0, available)
	memGiB, diskGiB := float64(available)/gib, float64(c.diskFree)/gib

	var failed []string
	if c.vm.CPUs > c.cpus {
		failed = append(failed, fmt.Sprintf("vm.cpus is %d and the host has %d", c.vm.CPUs, c.cpus))
	}
	if memGiB < c.vm.MemoryGiB+memoryHeadroomGiB {
		failed = append(failed, fmt.Sprintf("vm.memory_gib %.4g plus %.4g of headroom is more than the %.2f GiB that are available (memory promised to %d live instances is not)",
			c.vm.MemoryGiB, memoryHeadroomGiB, memGiB, len(u.Live)))
	}
	if diskGiB < c.vm.DiskGiB+diskHeadroomGiB {
		what := "vm.disk_gib"
		if c.template {
			what = "the template's size on the disk in GiB,"
		}
		failed = append(failed, fmt.Sprintf(what+" %.4g plus %.4g of headroom is more than the %.2f GiB that are free", c.vm.DiskGiB, diskHeadroomGiB, diskGiB))
	}
	if failed == nil {
		return nil
	}
	suggested := map[string]any{
		"cpus":       min(c.vm.CPUs, c.cpus),
		"memory_gib": floorHalf(math.Min(c.vm.MemoryGiB, memGiB-memoryHeadroomGiB)),
		"disk_gib":   floorHalf(math.Min(c.vm.DiskGiB, diskGiB-diskHeadroomGiB)),
	}
	e := fault.New(fault.InsufficientHostResources, "the host cannot carry this VM: %s", failed[0]).
		Because("%s", failed[0]).
		With("host_os", runtime.GOOS).
		With("workspace_root", c.workspaceRoot).
		With("workspace_config", c.config).
		With("requested_vm", map[string]any{"cpus": c.vm.CPUs, "memory_gib": c.vm.MemoryGiB, "disk_gib": c.vm.DiskGiB}).
		With("available_host", map[string]any{"cpu_count": c.cpus, "memory_available_gib": round2(memGiB), "disk_free_gib": round2(diskGiB)}).
		With("required_headroom", map[string]any{"memory_gib": memoryHeadroomGiB, "disk_gib": diskHeadroomGiB}).
		With("failed_checks", failed).
		With("suggested_vm", suggested)
	if c.template {
		// The caller asked for no VM of this size, and may not be create_instance.
		delete(e.Details, "suggested_vm")
		delete(e.Details, "requested_vm")
		if len(u.Live) > 0 {
			e.Next("destroy an instance that is no longer needed (list_instances shows them)")
		}
		return e.Next("ask for a VM with fewer processors or less memory, or free memory or disk on the host")
	}
	if c.given {
		delete(e.Details, "suggested_vm")
		if len(u.Live) > 0 {
			e.Next("destroy an instance that is no longer needed (list_instances shows them)")
		}
		return e.Next("free memory or disk on the host; a VM that begins in a snapshot has the snapshot's size")
	}
	if suggested["memory_gib"].(float64) > 0 && suggested["disk_gib"].(float64) > 0 {
		e.Next("repeat create_instance with overrides {\"vm\": {\"cpus\": %v, \"memory_gib\": %v, \"disk_gib\": %v}}",
			suggested["cpus"], suggested["memory_gib"], suggested["disk_gib"])
	}
	if len(u.Live) > 0 {
		e.Next("destroy an instance that is no longer needed (list_instances shows them)")
	}
	return e.Next("set smaller values under [vm] in the workspace's .sandboxforge.toml, or free memory or disk on the host")
}

// early is decide for a VM that is not admitted yet: VMs that will be gone by
// then, because they are made into a template or can make room, do not count.
func (c hostCheck) early(u store.Usage) error {
	if slices.ContainsFunc(u.Live, func(l store.Lease) bool { return l.Kind == store.KindPool }) {
		return nil
	}
	var live []store.Lease
	for _, l := range u.Live {
		if l.Kind == store.KindTemplate {
			c.available += c.touched[l.BackendInstanceName]
		} else {
			live = append(live, l)
		}
	}
	u.Live = live
	return c.decide(u)
}

// floorHalf rounds down to half a GiB, the grain of a sensible suggestion.
func floorHalf(v float64) float64 { return math.Max(0, math.Floor(v*2)/2) }

func round2(v float64) float64 { return math.Round(v*100) / 100 }

// newHostCheck measures the host. That a figure cannot be had does not stop a
// create: the check then counts it as plenty, and the log says so.
func (s *Service) newHostCheck(ctx context.Context, root string, res *config.Resolved) hostCheck {
	return s.measureHost(ctx, hostCheck{workspaceRoot: root, config: res.Tree, vm: res.Config.VM})
}

func (s *Service) measureHost(ctx context.Context, c hostCheck) hostCheck {
	c.cpus = host.CPUs()
	c.touched = s.touchedMemory(ctx)
	var err error
	if c.available, err = host.MemoryAvailable(); err != nil {
		s.log.Warn("available memory unknown", "error", err)
		c.available = math.MaxInt64
	}
	if c.diskFree, err = host.DiskFree(s.settings.VMDir()); err != nil {
		s.log.Warn("free disk unknown", "error", err)
		c.diskFree = math.MaxInt64
	}
	return c
}
