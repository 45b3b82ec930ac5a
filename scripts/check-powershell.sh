#!/bin/sh
# Parses the PowerShell scripts of the hyperv backend with a grammar that is not
# ours. Needs npm and the registry.
set -eu
cd "$(dirname "$0")/.."
at=$PWD/.build/powershell-grammar
mkdir -p "$at"
if [ ! -f "$at/node_modules/tree-sitter-powershell/tree-sitter-powershell.wasm" ] || [ ! -d "$at/node_modules/web-tree-sitter" ]; then
	echo "installing the PowerShell grammar"
	npm install --prefix "$at" --no-audit --no-fund --ignore-scripts --silent tree-sitter-powershell@0.26.4 web-tree-sitter@0.27.2
fi
files=$(find internal/backend/hyperv -name '*.ps1' | sort)
[ -n "$files" ] || { echo "no PowerShell files found" >&2; exit 1; }
# shellcheck disable=SC2086 # none of the names has a space
node scripts/check-powershell.mjs "$at" $files
