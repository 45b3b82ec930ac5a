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
# For the race detector of the tests.
need gcc gcc
[ -e /usr/include/stdlib.h ] || packages="$packages libc6-dev"
# The tests make the calls that README.md shows by hand.
need curl curl
if [ "${SETUP_LINT:-0}" = 1 ]; then
	need npm npm
fi

# Go: any toolchain from 1.21 on fetches the one that go.mod names by itself. An
# older one can still fetch it as a module, checked like any other; it is then
# kept in .build/go, where the Makefile looks first.
PATH=$(pwd)/.build/go/bin:$PATH:/usr/local/go/bin:/usr/lib/go/bin
go_ok() {
	v=$(go env GOVERSION 2>/dev/null | sed 's/^go//') || return 1
	[ -n "$v" ] && [ "$(printf '%s\n1.21\n' "$v" | sort -V | head -n 1)" = 1.21 ]
}
go_ok || command -v go >/dev/null 2>&1 || packages="$packages golang-go ca-certificates"

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
if ! go_ok && command -v go >/dev/null 2>&1; then
	want=$(sed -n 's/^toolchain go//p; s/^go //p' go.mod | sort -V | tail -n 1)
	echo "setup: fetching Go $want, $(go version | cut -d ' ' -f 3) is too old"
	case $(uname -m) in x86_64) arch=amd64 ;; *) arch=arm64 ;; esac
	tmp=$(mktemp -d)
	trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT
	printf 'module setup\n\ngo 1.19\n' >"$tmp/go.mod"
	(cd "$tmp" && GOFLAGS=-mod=mod GOPATH="$tmp/path" GOMODCACHE="$tmp/cache" go mod download "golang.org/toolchain@v0.0.1-go$want.linux-$arch")
	mkdir -p .build
	rm -rf .build/go
	cp -r "$tmp/cache/golang.org/toolchain@v0.0.1-go$want.linux-$arch" .build/go
	# Modules carry no executable bits.
	chmod -R u+w .build/go
	chmod +x .build/go/bin/* .build/go/pkg/tool/*/*
	hash -r
fi
if ! go_ok; then
	echo "setup: Go 1.21 or newer is needed; install a current one (https://go.dev/dl) and run make again." >&2
	exit 1
fi
[ -n "$packages" ] || [ -n "${want:-}" ] || echo "setup: nothing is missing"
