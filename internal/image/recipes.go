package image

// suite is the distribution release that both recipes use.
const suite = "trixie"

// The address plan of a guest, which is its supervisor's network's too. The
// gateway is also the resolver.
const (
	GuestAddress = "192.168.127.2/24"
	GuestGateway = "192.168.127.1"
)

// documentation is what nobody reads inside a disposable machine, and hardware
// tables for hardware that it cannot have.
var documentation = []string{
	"/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*",
	"/usr/share/lintian/*", "/usr/share/bug/*", "/usr/share/bash-completion/*",
	"/usr/lib/udev/hwdb.d/*", "/boot/System.map*",
}

// commonDrops are left over from installing.
var commonDrops = []string{
	"boot/*", "dev/*", "proc/*", "sys/*", "run/*", "tmp/*",
	"var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*", "var/cache/debconf/*-old", "var/lib/dpkg/*-old",
	"var/cache/ldconfig/*", "etc/hostname", "etc/resolv.conf", "etc/machine-id", "var/lib/dbus/machine-id", "etc/mtab",
	"etc/initramfs-tools", "usr/share/initramfs-tools", "vmlinuz", "vmlinuz.old", "initrd.img", "initrd.img.old",
}

// commonCmdline makes the kernel reach user space sooner. What each word saves
// is in docs/PERFORMANCE.md.
var commonCmdline = []string{
	"console=ttyS0", "root=/dev/vda", "rw", "rootfstype=ext4", "rootflags=noatime,noinit_itable",
	"quiet", "panic=-1", "oops=panic",
	"sandboxforge.net=" + GuestAddress + "," + GuestGateway,
}

// platformCmdline is what only makes sense on one architecture.
var platformCmdline = map[string][]string{
	"amd64": {
		"mitigations=off", "tsc=reliable", "no_timer_check", "nowatchdog", "random.trust_cpu=on", "audit=0",
		"lsm=capability", "init_on_alloc=0", "randomize_kstack_offset=off", "rcupdate.rcu_expedited=1",
		"i8042.noaux", "i8042.nokbd", "i8042.nopnp", "8250.nr_uarts=1", "cryptomgr.notests",
	},
	"arm64": {
		"mitigations=off", "nowatchdog", "random.trust_cpu=on", "audit=0",
		"lsm=capability", "init_on_alloc=0", "rcupdate.rcu_expedited=1", "cryptomgr.notests",
	},
}

// earlyModules bring up the devices that the machine has.
var earlyModules = []string{"virtio_blk", "virtio_net", "virtio_rng"}

// Default is the recipe that instances use unless told otherwise: systemd,
// Docker with compose and buildx, git, rsync and the tools a developer takes
// for granted. The user is sandbox; nothing listens for logins.
func Default(arch string) (Recipe, error) {
	return withGuest(Recipe{
		Name: DefaultName, Arch: arch, Suite: suite, Variant: "minbase",
		Packages: []string{
			"linux-image-cloud-" + arch,
			"systemd-sysv", "dbus", "udev", "kmod", "libnss-myhostname",
			"docker.io", "docker-cli", "docker-compose", "docker-buildx", "iptables",
			"git", "rsync", "ca-certificates", "sudo", "curl",
			"procps", "iproute2", "less", "xz-utils", "zstd", "e2fsprogs", "netbase",
		},
		PathExcludes: append([]string{"/usr/bin/containerd-stress", "/usr/bin/containerd-shim", "/usr/bin/containerd-shim-runc-v1"}, documentation...),
		Layers:       []string{"common", "default"},
		Drops:        append(append([]string{}, commonDrops...), unneededWants...),
		Masks:        maskedUnits,
		Links: map[string]string{
			"etc/systemd/system/sysinit.target.wants/sandboxforge-agent.service": "/etc/systemd/system/sandboxforge-agent.service",
			"etc/systemd/system/default.target":                                  "/usr/lib/systemd/system/multi-user.target",
			// Docker starts iptables some sixty times; the legacy one starts faster.
			"etc/alternatives/iptables":          "/usr/sbin/iptables-legacy",
			"etc/alternatives/iptables-save":     "/usr/sbin/iptables-legacy-save",
			"etc/alternatives/iptables-restore":  "/usr/sbin/iptables-legacy-restore",
			"etc/alternatives/ip6tables":         "/usr/sbin/ip6tables-legacy",
			"etc/alternatives/ip6tables-save":    "/usr/sbin/ip6tables-legacy-save",
			"etc/alternatives/ip6tables-restore": "/usr/sbin/ip6tables-legacy-restore",
		},
		Groups:       []string{"sudo", "docker"},
		EarlyModules: earlyModules,
		LateModules:  dockerModules,
		SizeMiB:      3072,
		Cmdline:      cmdline(arch, "systemd.show_status=false", "systemd.log_level=warning"),
	})
}

// Minimal is the recipe for tests of life cycle and faults: the same kernel
// and agent, the agent as process 1, a shell and the basic tools, no systemd
// and no Docker.
func Minimal(arch string) (Recipe, error) {
	return withGuest(Recipe{
		Name: MinimalName, Arch: arch, Suite: suite, Variant: "essential",
		Packages:     []string{"linux-image-cloud-" + arch, "kmod", "xz-utils", "procps"},
		PathExcludes: documentation,
		Layers:       []string{"common"},
		Drops:        commonDrops,
		EarlyModules: earlyModules,
		SizeMiB:      1024,
		Cmdline:      cmdline(arch, "sandboxforge.init=/usr/lib/sandboxforge/agent,init"),
	})
}

func cmdline(arch string, more ...string) []string {
	return append(append(append([]string{}, commonCmdline...), platformCmdline[arch]...), more...)
}
