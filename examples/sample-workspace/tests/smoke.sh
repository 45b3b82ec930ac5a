#!/bin/sh
# Asks the service from outside its container, as its users would, and prints
# what it answered.
#
#   tests/smoke.sh http://localhost:8080
set -eu
base=${1:?usage: smoke.sh BASE_URL}
say() { printf '%s %s\n' "$1" "$2"; }

# It may still be starting.
healthz=$(curl -fs --retry 120 --retry-delay 1 --retry-all-errors "$base/healthz") || {
	printf 'smoke.sh: nothing healthy answers on %s\n' "$base" >&2
	exit 1
}
say healthz "$healthz"
posted=$(curl -fsS -d '{"url": "https://example.com/docs"}' "$base/links")
say posted "$posted"
code=$(printf '%s' "$posted" | sed 's/.*"code": "\([a-z2-7]*\)".*/\1/')
say redirect "$(curl -sS -o /dev/null -w '%{http_code} %{redirect_url}' "$base/$code")"
say link "$(curl -fsS "$base/links/$code")"
say unknown "$(curl -sS -o /dev/null -w '%{http_code}' "$base/aaaaaaaa")"
