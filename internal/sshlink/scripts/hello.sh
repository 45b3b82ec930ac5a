# The command that becomes the relay. It says what the guest is and has, and
# waits for the host's word.
# $1: what the guest's paths begin with; empty in a guest.
lib=$1/usr/lib/sandboxforge
run=$1/run/sandboxforge
stamp=none
if [ -x "$lib/agent" ] && [ -f "$lib/stamp" ]; then read -r stamp <"$lib/stamp" || stamp=none; fi
init=none
if [ -z "$1" ] && [ -d /run/systemd/system ]; then init=systemd; fi
active=no
if [ $init = systemd ]; then
	systemctl -q is-active sandboxforge-agent.service && active=yes
elif [ -f "$run/loop.pid" ] && read -r pid <"$run/loop.pid" && grep -q sandboxforge/loop "/proc/$pid/cmdline" 2>/dev/null; then
	active=yes
fi
echo "sandboxforge-hello 1 $(uname -m) ${stamp:-none} $init $active"
IFS= read -r word || exit 0
if [ "$word" = relay ]; then exec "$lib/agent" relay -socket "$run/agent.sock"; fi
