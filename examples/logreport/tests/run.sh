#!/bin/sh
# The tests, in TAP. They need a shell and awk only, so that they run in the
# guest and inside the container image alike.
set -u
cd "${0%/*}/.." || exit 2

n=0
failed=0
check() { # NAME WANT GOT
	n=$((n + 1))
	if [ "$2" = "$3" ]; then
		printf 'ok %d - %s\n' "$n" "$1"
		return
	fi
	failed=$((failed + 1))
	printf 'not ok %d - %s\n  wanted: %s\n  got:    %s\n' "$n" "$1" "$2" "$3"
}
report() { sh bin/logreport "$@" 2>&1; }
code() {
	sh bin/logreport "$@" >/dev/null 2>&1 </dev/null
	echo $?
}

log='2026-03-01T08:00:00Z GET /a 200 10
2026-03-01T08:00:01Z GET /b 200 30
2026-03-01T08:00:02Z GET /a 404 20
2026-03-01T08:00:03Z POST /c 503 400

this is no log line
2026-03-01T08:00:04Z GET /a 999 1'

check 'text report' 'requests   4 (2 malformed)
latency    p50 20 ms  p95 400 ms  max 400 ms
status     2xx 2 (50.0%)
status     4xx 1 (25.0%)
status     5xx 1 (25.0%)
path       /a                       2  mean 15.0 ms
path       /b                       1  mean 30.0 ms' "$(printf '%s\n' "$log" | report -n 2)"

check 'json report' '{"requests":4,"malformed":2,"latency_ms":{"p50":20,"p95":400,"max":400},"status":{"2xx":2,"4xx":1,"5xx":1},"paths":[{"path":"/a","requests":2}]}' \
	"$(printf '%s\n' "$log" | report -f json -n 1)"

check 'quotes and backslashes are escaped in json' \
	'{"requests":1,"malformed":0,"latency_ms":{"p50":7,"p95":7,"max":7},"status":{"2xx":1},"paths":[{"path":"/\"\\","requests":1}]}' \
	"$(printf '%s\n' '2026-03-01T08:00:00Z GET /"\ 200 7' | report -f json)"

check 'one valid line is every percentile' 'latency    p50 7 ms  p95 7 ms  max 7 ms' \
	"$(printf 't GET / 200 7\n' | report | { read -r _ && read -r line && printf '%s' "$line"; })"

check 'numbers sort by value, not as text' 'latency    p50 9 ms  p95 100 ms  max 100 ms' \
	"$(printf 't GET / 200 100\nt GET / 200 9\nt GET / 200 8\n' | report | { read -r _ && read -r line && printf '%s' "$line"; })"

check 'the sample log is read whole' 'requests   240 (3 malformed)' \
	"$(report data/access.log | { read -r line && printf '%s' "$line"; })"

check 'an empty log is an error' 1 "$(code)"
check 'an unknown format is wrong usage' 2 "$(code -f xml)"
check 'a top of 0 is wrong usage' 2 "$(code -n 0)"
check 'a missing file is wrong usage' 2 "$(code data/nowhere.log)"

printf '1..%d\n' "$n"
[ "$failed" -eq 0 ] || { printf '# %d of %d failed\n' "$failed" "$n"; exit 1; }
printf '# all %d passed\n' "$n"
