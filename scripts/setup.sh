#!/bin/sh
# Installs the host packages that SandboxForge needs and that are missing.
# Debian and Ubuntu only; elsewhere it names what to install and fails.
# With SETUP_LINT=1 it also installs what the conformance run needs (npm).
set -eu

packages=
need() { # command package
	command -v "$1" >/dev/null 2>&1 || packages="$packages $2"
}
case $(uname -m) in
x86_64) need qemu-system-x86_64 qemu-system-x86 ;;
aarch64) need qemu-system-aarch64 qemu-system-arm ;;
*) echo "setup: no guest images for $(uname -m); x86_64 and aarch64 are supported" >&2; exit 1 ;;
esac
need qemu-img qemu-utils
need mmdebstrap mmdebstrap
need mkfs.ext4 e2fsprogs
need newuidmap uidmap
need git git
need make make
if [ ! -e /usr/share/keyrings/debian-archive-keyring.gpg ]; then
	packages="$packages debian-archive-keyring"
fi
if [ "${SETUP_LINT:-0}" = 1 ]; then
	need npm npm
fi

# Go: any toolchain from 1.21 on fetches the one that go.mod names by itself.
PATH=$PATH:/usr/local/go/bin:/usr/lib/go/bin
go_ok() {
	v=$(go env GOVERSION 2>/dev/null | sed 's/^go//') || return 1
	[ -n "$v" ] && [ "$(printf '%s\n1.21\n' "$v" | sort -V | head -n 1)" = 1.21 ]
}
go_ok || packages="$packages golang-go"

if [ -n "$packages" ]; then
	if ! command -v apt-get >/dev/null 2>&1; then
		echo "setup: missing:$packages" >&2
		echo "setup: these are Debian's package names; run 'sandboxforge doctor' for dnf and pacman" >&2
		exit 1
	fi
	run=
	if [ "$(id -u)" != 0 ]; then
		run=sudo
		command -v sudo >/dev/null 2>&1 || { echo "setup: run as root: apt-get install$packages" >&2; exit 1; }
	fi
	echo "setup: installing$packages"
	export DEBIAN_FRONTEND=noninteractive
	$run apt-get update -qq
	# shellcheck disable=SC2086 # a list of names
	$run apt-get install -y -qq --no-install-recommends $packages >/dev/null
fi
if ! go_ok; then
	echo "setup: Go 1.21 or newer is needed and this distribution's golang-go is older." >&2
	echo "setup: install a current Go (https://go.dev/dl) or golang-go from backports, then run make again." >&2
	exit 1
fi
