#!/bin/sh
# Every test, real VMs included. `make test` calls this after make build.
#
# SANDBOX_IMAGE_DIR  where the tests' guest images are built and kept
# TEST_ARGS          more arguments for go test, for example -run Name
set -eu
GO=${GO:-go}
root=$(pwd)
mkdir -p .build
export SANDBOX_IMAGE_DIR="${SANDBOX_IMAGE_DIR:-$root/.build/images}"
# Marks every process of this run, so that what is left over can be told from
# other people's VMs.
SANDBOXFORGE_TEST_RUN="$$-$(date +%s)"
export SANDBOXFORGE_TEST_RUN
export SANDBOXFORGE_TEST_BOOTS="$root/.build/test-boots.log"

began=$(date +%s)
lap() { now=$(date +%s); echo "--- $1: $((now - began)) s"; began=$now; }

bin/sandboxforge image build minimal
bin/sandboxforge image build default
lap images
# shellcheck disable=SC2086 # TEST_ARGS is a list of words
$GO test -race -count=1 -timeout 75m ${TEST_ARGS:-} ./...
lap "go test"
# Last, in a run of its own: nothing may be left of all that.
$GO test -count=1 -run TestNothingIsLeft ./test/leftovers -args -check
lap leftovers
