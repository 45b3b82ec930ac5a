#!/bin/sh
# Asks the service from outside its container, as its users would, and prints
# what it answered. What it waits for is said on stderr.
#
#   tests/smoke.sh http://localhost:8080
set -eu
base=${1:?usage: smoke.sh BASE_URL}
say() { printf '%s %s\n' "$1" "$2"; }
told() { printf 'smoke.sh: %s\n' "$1" >&2; }

# No container of the app runs, so that waiting is in vain. False where Docker
# cannot be asked.
down() { ids=$(cd "${0%/*}/.." && docker compose ps -q app 2>/dev/null) && [ -z "$ids" ]; }

# It may still be starting.
began=$(date +%s)
next=0
until healthz=$(curl -fsS --max-time 10 "$base/healthz" 2>&1); do
	status=$? # of curl; 7 is that the connection was refused
	waited=$(($(date +%s) - began))
	if [ "$waited" -ge 120 ] || { [ "$status" = 7 ] && down; }; then
		told "nothing healthy answers on $base: $healthz"
		told "is the app up? docker compose ps; docker compose logs app"
		exit 1
	fi
	if [ "$waited" -ge "$next" ]; then
		told "waiting for $base, $waited of 120 s: $healthz"
		next=$((next + 10))
	fi
	sleep 1
done
say healthz "$healthz"
posted=$(curl -fsS -d '{"url": "https://example.com/docs"}' "$base/links")
say posted "$posted"
code=$(printf '%s' "$posted" | sed 's/.*"code": "\([a-z2-7]*\)".*/\1/')
say redirect "$(curl -sS -o /dev/null -w '%{http_code} %{redirect_url}' "$base/$code")"
say link "$(curl -fsS "$base/links/$code")"
say unknown "$(curl -sS -o /dev/null -w '%{http_code}' "$base/aaaaaaaa")"
