# Puts the agent into the guest: stdin is a tar of its files. What appears
# appears by rename, the stamp last, so that a cut leaves what was there.
# $1: root as in hello.sh, $2: the stamp, $3 and $4: sha256 of agent and shim.
set -eu
umask 022
fail() { echo "$*" >&2; exit 1; }
lib=$1/usr/lib/sandboxforge
for tool in tar sha256sum; do command -v $tool >/dev/null || fail "the guest has no $tool"; done
mkdir -p "$lib"
rm -rf "$lib"/.new.*
new=$lib/.new.$$
mkdir "$new"
trap 'rm -rf "$new"' EXIT
tar -xof - -C "$new" || fail "the files did not arrive whole"
(cd "$new" && printf '%s  agent\n%s  shim\n' "$3" "$4" | sha256sum -c - >/dev/null) || fail "the files did not arrive whole"
chmod 755 "$new/agent" "$new/shim" "$new/loop"
for f in agent shim loop; do mv -f "$new/$f" "$lib/$f"; done

if [ -z "$1" ]; then
	# What SandboxForge's own images have.
	if ! id sandbox >/dev/null 2>&1; then
		if command -v useradd >/dev/null; then
			useradd -m -s "$(command -v bash || echo /bin/sh)" sandbox
		else
			adduser -D -s /bin/sh sandbox
		fi
	fi
	if command -v sudo >/dev/null; then
		mkdir -p /etc/sudoers.d
		# sudo reads no name with a dot.
		echo 'sandbox ALL=(ALL:ALL) NOPASSWD: ALL' >/etc/sudoers.d/sandbox.new
		chmod 440 /etc/sudoers.d/sandbox.new
		mv -f /etc/sudoers.d/sandbox.new /etc/sudoers.d/sandbox
	fi
	for group in sudo docker; do
		grep -q "^$group:" /etc/group || continue
		usermod -aG $group sandbox 2>/dev/null || addgroup sandbox $group
	done
	if [ ! -d /workspace ]; then
		mkdir -p /workspace
		chown sandbox: /workspace
	fi
	if [ -d /run/systemd/system ]; then
		mv -f "$new/sandboxforge-agent.service" /etc/systemd/system/sandboxforge-agent.service
		systemctl daemon-reload
		systemctl -q enable sandboxforge-agent.service
		# A Docker that is there but rests, as beside a rootless one.
		if command -v dockerd >/dev/null; then
			systemctl -q unmask docker.service docker.socket containerd.service containerd.socket || :
		fi
		if systemctl cat docker.service >/dev/null 2>&1; then
			systemctl -q enable docker.service || :
			systemctl --no-block start docker.service || :
		fi
	fi
fi
rm -rf "$new"
trap - EXIT
# One file system at most is written out.
sync -f "$lib/agent" 2>/dev/null || sync
echo "$2" >"$lib/stamp.new"
mv -f "$lib/stamp.new" "$lib/stamp"
