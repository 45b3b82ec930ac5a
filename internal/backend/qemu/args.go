//go:build linux

package qemu

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// agentPort is the name of the virtio-serial port that the guest's agent opens.
const agentPort = "org.sandboxforge.agent.0"

// Descriptors that QEMU inherits, numbered in the order process passes them.
const (
	fdLock    = 3
	fdMonitor = 4
	fdConsole = 5
	fdAgent   = 6
	fdNetwork = 7
	fdState   = 8 // a saved state to load
)

// machine is everything that decides how the guest's computer looks. Equal
// values give equal device lists, which is what a saved state needs: nothing
// in it but name, paths and the root disk's file may differ between a VM and a
// clone of it.
type machine struct {
	name    string
	arch    string // GOARCH
	typ     string // versioned machine type: an alias changes with QEMU
	accel   accelerator
	cpus    int
	memory  memory
	kernel  string
	initrd  string // may be empty
	cmdline string
	disk    string // path of the qcow2 overlay; empty: none
	network bool   // with a card on fdNetwork
	agent   bool   // with the agent's port on fdAgent
	// noGeneration leaves out the device that tells a kernel that it was
	// cloned; arm64 has none anyway.
	noGeneration bool
	load         bool // begins in the saved state on fdState, paused
	monitor      bool // with QMP on fdMonitor
	sandbox      bool // QEMU's seccomp filter
}

// memory is the guest's RAM. A named file is what templates are made of.
type memory struct {
	mib   int64
	file  string // empty: anonymous
	share bool   // of a file: writes go to the file
}

// accelerator is how guest code runs.
type accelerator struct {
	name         string // "kvm" or "tcg"
	singleThread bool   // tcg: all CPUs on one host thread
}

// String is the accelerator as Info shows it.
func (a accelerator) String() string {
	if a.singleThread {
		return a.name + " (one thread)"
	}
	return a.name
}

// translationCacheMiB caps the host memory for translated guest code per VM.
// QEMU's own default is up to 1 GiB, which a long-lived guest fills.
const translationCacheMiB = 256

// The guest's network card. The address is the same in every VM: each has a
// network of its own, and a clone must find the card it was saved with. The
// MTU is the device's word to the guest's driver, and part of a saved state.
const (
	MACAddress = "52:54:00:5f:0b:01"
	NetworkMTU = 65520
)

// args is the command line, without the executable.
func (m machine) args() []string {
	var a []string
	add := func(s ...string) { a = append(a, s...) }

	add("-name", "guest="+comma(m.name)+",debug-threads=on")
	add("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot")
	if m.sandbox {
		add("-sandbox", sandboxArg)
	}
	add("-machine", m.machineType())
	add("-accel", m.accelArg(), "-cpu", m.cpuModel(), "-smp", strconv.Itoa(m.cpus))
	add("-m", strconv.FormatInt(m.memory.mib, 10), "-object", m.memory.object())
	add("-kernel", m.kernel)
	if m.initrd != "" {
		add("-initrd", m.initrd)
	}
	add("-append", m.cmdline)
	add("-chardev", fmt.Sprintf("socket,id=console,fd=%d", fdConsole), "-serial", "chardev:console")
	if m.monitor {
		add("-chardev", fmt.Sprintf("socket,id=monitor,fd=%d", fdMonitor), "-mon", "chardev=monitor,mode=control")
	}
	if m.disk != "" {
		add("-blockdev", m.blockdev(), "-device", "virtio-blk-pci,drive="+rootNode+",id=root-disk")
	}
	if m.network {
		// The frames go to the VM's owner, whose network it is.
		add("-netdev", fmt.Sprintf("stream,id=net0,server=off,addr.type=fd,addr.str=%d", fdNetwork),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=net0,id=nic,romfile=,mac=%s,host_mtu=%d", MACAddress, NetworkMTU))
	}
	if m.agent {
		add("-device", "virtio-serial-pci,id=serial,max_ports=2",
			"-chardev", fmt.Sprintf("socket,id=agent,fd=%d,server=on,wait=off", fdAgent),
			"-device", "virtserialport,bus=serial.0,nr=1,chardev=agent,id=agent-port,name="+agentPort)
	}
	add("-object", "rng-random,id=entropy,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=entropy,id=rng")
	if m.arch == "amd64" && !m.noGeneration {
		add("-device", "vmgenid,guid=auto,id=generation")
	}
	if m.load {
		// -S: a state saved while the guest ran would start by itself.
		add("-S", "-incoming", "defer")
	}
	if m.monitor {
		// A state has no configuration section, see save, and neither has what
		// QEMU sends of the memory.
		add("-global", "migration.send-configuration=off")
	}
	return a
}

// sandboxArg is what QEMU's seccomp filter keeps it from.
const sandboxArg = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

func (m machine) machineType() string {
	opts := []string{m.typ, "memory-backend=ram", "dump-guest-core=off"}
	switch m.arch {
	case "amd64":
		// Devices of the chipset that no guest of ours has a driver or a use
		// for. ACPI stays: the power button and vmgenid need it.
		opts = append(opts, "sata=off", "smbus=off", "vmport=off", "hpet=off", "smm=off", "i8042=off")
	case "arm64":
		gic := "gic-version=max"
		if m.accel.name == "kvm" {
			gic = "gic-version=host"
		}
		opts = append(opts, gic)
	}
	return strings.Join(opts, ",")
}

func (m machine) accelArg() string {
	if m.accel.name != "tcg" {
		return m.accel.name
	}
	thread := "multi"
	if m.accel.singleThread {
		thread = "single"
	}
	return fmt.Sprintf("tcg,thread=%s,tb-size=%d", thread, translationCacheMiB)
}

func (m machine) cpuModel() string {
	if m.accel.name == "tcg" {
		return "max"
	}
	return "host"
}

func (m memory) object() string {
	if m.file == "" {
		return fmt.Sprintf("memory-backend-ram,id=ram,size=%dM", m.mib)
	}
	share := "off"
	if m.share {
		share = "on"
	}
	return fmt.Sprintf("memory-backend-file,id=ram,size=%dM,mem-path=%s,share=%s", m.mib, comma(m.file), share)
}

// rootNode is the block node of the root disk that a VM starts with.
const rootNode = "root"

// blockNode describes a qcow2 disk to QEMU.
func blockNode(node, path string) map[string]any {
	return map[string]any{
		"driver": "qcow2", "node-name": node,
		"discard": "unmap", "detect-zeroes": "unmap",
		// A guest's flush goes to the host's page cache: disks are disposable.
		"cache": map[string]any{"direct": false, "no-flush": true},
		"file":  map[string]any{"driver": "file", "filename": path, "discard": "unmap"},
	}
}

// blockdev is JSON, the one form in which a path needs no quoting.
func (m machine) blockdev() string {
	b, err := json.Marshal(blockNode(rootNode, m.disk))
	if err != nil {
		panic(err) // strings and booleans always marshal
	}
	return string(b)
}

// comma quotes a value within a comma-separated option.
func comma(s string) string { return strings.ReplaceAll(s, ",", ",,") }

// kernelCmdline is the image's command line with what this VM adds.
func kernelCmdline(image, hostname string) string {
	if hostname == "" {
		return image
	}
	return image + " sandboxforge.hostname=" + hostname
}

// loudCmdline is a command line under which the kernel says all it has to say
// on the console.
func loudCmdline(image string) string {
	words := slices.DeleteFunc(strings.Fields(image), func(w string) bool {
		return w == "quiet" || strings.HasPrefix(w, "loglevel=")
	})
	return strings.Join(append(words, "ignore_loglevel", "panic=-1"), " ")
}
