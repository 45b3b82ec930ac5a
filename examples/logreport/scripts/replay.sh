#!/bin/sh
# Reports on a growing part of the log, one part a second: something that takes
# a while, for a background task.
set -eu
cd "${0%/*}/.."
parts=${1:-5}
part=1
while [ "$part" -le "$parts" ]; do
	printf 'part %d of %d: ' "$part" "$parts"
	head -n $((part * 240 / parts)) data/access.log | bin/logreport | head -n 1
	[ "$part" -eq "$parts" ] || sleep 1
	part=$((part + 1))
done
echo done
