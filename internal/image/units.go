package image

// maskedUnits must not start even when something asks for them: their work is
// done by the initrd's init or at build time, or has no place in a disposable
// machine. Timers are all masked: a clone's clock leaps, and they would leap
// with it.
var maskedUnits = []string{
	// Time leaps with a clone.
	"apt-daily.timer", "apt-daily-upgrade.timer", "apt-daily.service", "apt-daily-upgrade.service",
	"dpkg-db-backup.timer", "fstrim.timer", "e2scrub_all.timer", "e2scrub_reap.service", "systemd-tmpfiles-clean.timer",
	"systemd-timesyncd.service",
	// Nobody logs in.
	"getty.target", "getty-static.service", "getty@tty1.service", "serial-getty@ttyS0.service", "console-getty.service",
	"systemd-logind.service", "systemd-ask-password-wall.path", "systemd-ask-password-console.path",
	// The network and the root file system are there before systemd is.
	"systemd-networkd.service", "systemd-networkd.socket", "systemd-networkd-wait-online.service", "systemd-resolved.service",
	"systemd-remount-fs.service", "systemd-fsck-root.service", "systemd-modules-load.service",
	// Devices are few and fixed, and devtmpfs names them.
	"systemd-udev-trigger.service", "systemd-udev-settle.service", "systemd-udevd.service",
	"systemd-udevd-control.socket", "systemd-udevd-kernel.socket", "systemd-hwdb-update.service",
	// First boot, and updates that were done when the image was built.
	"systemd-firstboot.service", "systemd-machine-id-commit.service", "systemd-sysusers.service", "ldconfig.service",
	"systemd-update-done.service", "systemd-journal-catalog-update.service",
	// Hardware and policies that this machine has not.
	"systemd-pstore.service", "systemd-rfkill.service", "systemd-rfkill.socket", "systemd-backlight@.service",
	"systemd-random-seed.service", "systemd-journal-flush.service", "systemd-hibernate-clear.service",
	"systemd-tpm2-setup.service", "systemd-tpm2-setup-early.service", "systemd-pcrmachine.service",
	"systemd-pcrphase.service", "systemd-pcrphase-sysinit.service", "systemd-update-utmp.service",
	"apparmor.service",
	// /tmp is on disk: memory is scarcer.
	"tmp.mount",
}

// unneededWants are links that would make systemd load and order units that
// have nothing to do here. Without the link a unit still starts if it is asked
// for.
var unneededWants = []string{
	"usr/lib/systemd/system/multi-user.target.wants",
	"usr/lib/systemd/system/getty.target.wants",
	"usr/lib/systemd/system/timers.target.wants",
	"usr/lib/systemd/system/initrd.target.wants",
	"usr/lib/systemd/system/local-fs.target.wants",
	// Each generator is a process, and would make units for things that are not here.
	"usr/lib/systemd/system-generators/*",
	"usr/lib/systemd/system-environment-generators/*",
	"usr/lib/systemd/system/sysinit.target.wants",
	// dockerd asks the bus for firewalld; without a socket it need not start.
	"usr/lib/systemd/system/sockets.target.wants/dbus.socket",
	"usr/lib/systemd/system/sockets.target.wants/systemd-creds.socket",
	"usr/lib/systemd/system/sockets.target.wants/systemd-hostnamed.socket",
	"usr/lib/systemd/system/sockets.target.wants/systemd-initctl.socket",
	"usr/lib/systemd/system/sockets.target.wants/systemd-pcrextend.socket",
	"usr/lib/systemd/system/sockets.target.wants/systemd-pcrlock.socket",
	"usr/lib/systemd/system/sockets.target.wants/systemd-sysext.socket",
	"usr/lib/systemd/system/sockets.target.wants/systemd-udevd-control.socket",
	"usr/lib/systemd/system/sockets.target.wants/systemd-udevd-kernel.socket",
	"etc/systemd/system/timers.target.wants",
	"etc/systemd/system/getty.target.wants",
	"etc/systemd/system/sysinit.target.wants",
	"etc/systemd/system/multi-user.target.wants/remote-fs.target",
	"etc/systemd/system/multi-user.target.wants/e2scrub_reap.service",
}

// dockerModules are what dockerd, containerd and the first container ask for,
// one modprobe at a time, if they are not there.
var dockerModules = []string{
	"overlay", "bridge", "br_netfilter", "veth",
	"ip_tables", "iptable_filter", "iptable_nat", "nf_conntrack", "nf_nat",
	"xt_conntrack", "xt_addrtype", "xt_MASQUERADE", "xt_nat", "xt_tcpudp", "xt_comment", "xt_mark",
	"nf_conntrack_netlink", "xfrm_user",
}
