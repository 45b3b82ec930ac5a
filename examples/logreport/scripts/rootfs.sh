#!/bin/sh
# Collects what the container image is made of: a shell, awk and the shared
# libraries they load, taken from the machine this runs on (the VM). So the
# image needs no registry and no network.
#
#   scripts/rootfs.sh DIR
set -eu
dest=${1:?usage: rootfs.sh DIR}
rm -rf "$dest"
mkdir -p "$dest/bin" "$dest/tmp"

for program in sh awk; do
	path=$(readlink -f "$(command -v "$program")")
	cp "$path" "$dest/bin/$program"
	# ldd prints "name => /path (address)" and, for the loader, "/path (address)".
	ldd "$path" | awk '{ for (i = 1; i <= NF; i++) if ($i ~ /^\//) { print $i; next } }' | while read -r library; do
		mkdir -p "$dest${library%/*}"
		cp -L "$library" "$dest$library"
	done
done
