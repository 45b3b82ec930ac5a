# Starts the agent, or starts it anew: its processes go on.
set -eu
run=$1/run/sandboxforge
if [ -z "$1" ] && [ -d /run/systemd/system ]; then
	systemctl restart sandboxforge-agent.service
else
	mkdir -p "$run"
	chmod 700 "$run"
	# One at a time: a command goes on for a while after its connection was cut.
	tries=0
	until mkdir "$run/starting" 2>/dev/null || [ $tries -ge 30 ]; do
		tries=$((tries + 1))
		sleep 1
	done
	trap 'rmdir "$run/starting" 2>/dev/null' EXIT
	trap 'exit 1' HUP INT TERM
	pid=none
	[ ! -f "$run/loop.pid" ] || read -r pid <"$run/loop.pid" || :
	alive() { grep -q sandboxforge/loop "/proc/$pid/cmdline" 2>/dev/null; }
	tries=0
	while alive && [ $tries -lt 10 ]; do
		kill "$pid" 2>/dev/null || :
		tries=$((tries + 1))
		sleep 0.1 2>/dev/null || sleep 1
	done
	! alive || kill -9 "$pid" || :
	# A session of its own: nothing of this one may hold or end it.
	setsid "$1/usr/lib/sandboxforge/loop" "$1" </dev/null >"$run/agent.log" 2>&1 &
	echo $! >"$run/loop.pid.new"
	mv -f "$run/loop.pid.new" "$run/loop.pid"
fi
