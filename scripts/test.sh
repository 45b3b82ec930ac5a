#!/bin/sh
# Every test, real VMs included. `make test` calls this after make build.
#
# SANDBOX_IMAGE_DIR  where the tests' guest images are built and kept
# TEST_SLOW=1        also the end-to-end tests that take minutes each, and the lima
#                    backend's tests with VMs
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
run_tests() { $GO test -race -count=1 -timeout 75m "$@"; }
if [ -n "${TEST_ARGS:-}" ]; then
	# shellcheck disable=SC2086 # TEST_ARGS is a list of words
	run_tests $TEST_ARGS ./...
	lap "go test"
else
	# shellcheck disable=SC2046 # a list of words
	run_tests $($GO list ./... | grep -v '/test/e2e$\|/backend/lima$')
	lap "go test"
	# The tests of a whole system wait for their one VM much of the time: three
	# parts at once use a host of two processors.
	services='^Test(Service|TemplateOfServices|EnvFile|Preloaded|SampleWalk|LogreportWalk)'
	docker='^Test(Build|CancelledBuild|EngineDies|Containers|Foreground|WhatDocker|HostileNames|EndOfA|Cleanup|Compose|Keys|EveryKey|DockerIsInstalled|DockerOffline)'
	# Under software emulation these take minutes each; see TEST_SLOW.
	slow='^Test(BuildThatFillsTheDisk|PrebuiltImages|ContextThatChanges|BuildByGit|LogOfABuild|KeysOfTheServices|ServicesThatCannotRun)'
	if [ "${TEST_SLOW:-0}" = 1 ]; then
		slow='^$'
	else
		echo "left out, since they are slow (TEST_SLOW=1 runs them): $slow"
	fi
	run_tests -run "$services" -skip "$slow" ./test/e2e &
	one=$!
	run_tests -run "$docker" -skip "$slow" ./test/e2e &
	two=$!
	failed=0
	run_tests -skip "$services|$docker|$slow" ./test/e2e || failed=1
	wait $one || failed=1
	wait $two || failed=1
	lap "end to end"
	[ $failed = 0 ] || exit 1
	# By itself: hundreds of processes come and go in it, within limits of seconds.
	short=-short
	[ "$slow" != '^$' ] || short=
	# shellcheck disable=SC2086 # nothing, or one word
	run_tests $short ./internal/backend/lima
	lap lima
fi
# Last, in a run of its own: nothing may be left of all that.
$GO test -count=1 -run TestNothingIsLeft ./test/leftovers -args -check
lap leftovers
