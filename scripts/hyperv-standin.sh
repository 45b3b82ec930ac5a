#!/bin/sh
# The hyperv backend's contract on real VMs: the stand-in for powershell.exe with
# QEMU behind it, and a Debian with cloud-init and sshd as the base disk, which
# is built first. Needs root, mmdebstrap, qemu and the distribution's mirror;
# takes long under emulation.
#
# HYPERV_GUEST_DIR: where the guest is kept, default .build/hyperv-guest.
# HYPERV_TESTS: which tests, default all on real VMs.
set -eu
cd "$(dirname "$0")/.."
GO=${GO:-go}
dir=${HYPERV_GUEST_DIR:-$PWD/.build/hyperv-guest}
mkdir -p "$dir"
if [ ! -f "$dir/base.vhdx" ]; then
	work=$(mktemp -d "$dir/build.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	mmdebstrap --quiet --variant=minbase \
		--include=linux-image-cloud-amd64,initramfs-tools,systemd-sysv,systemd-resolved,udev,dbus,openssh-server,cloud-init,netplan.io,cloud-guest-utils,sudo,procps,e2fsprogs,ca-certificates,iproute2 \
		trixie "$work/root.tar"
	mkdir "$work/root"
	tar -C "$work/root" -xf "$work/root.tar"
	mv "$work"/root/boot/vmlinuz-* "$dir/vmlinuz"
	mv "$work"/root/boot/initrd.img-* "$dir/initrd"
	# As in a cloud image: no identity of its own.
	: >"$work/root/etc/machine-id"
	rm -rf "$work"/root/etc/ssh/ssh_host_* "$work"/root/var/cache/apt/archives/*.deb
	echo '/dev/vda / ext4 defaults 0 1' >"$work/root/etc/fstab"
	truncate -s 2500M "$work/root.ext4"
	mkfs.ext4 -q -F -E lazy_itable_init=1 -d "$work/root" "$work/root.ext4"
	qemu-img convert -f raw -O vhdx -o subformat=dynamic "$work/root.ext4" "$work/base.vhdx"
	mv "$work/base.vhdx" "$dir/base.vhdx"
	rm -rf "$work"
	trap - EXIT
fi
[ -n "$(ls internal/guestbin/bin/*.gz 2>/dev/null)" ] || $GO run ./internal/guestbin/gen
export SANDBOXFORGE_HYPERV_GUEST="$dir"
tests=${HYPERV_TESTS:-TestContractOnRealVMs|TestGuestIsProvisioned|TestHyperV$}
$GO test -count=1 -p 1 -timeout 90m -v -run "$tests" ./internal/backend/hyperv ./test/e2e
