#!/bin/sh
# Builds the container image, runs the tests in it, then runs it on the sample
# log. Everything happens offline. DOCKER may name another docker command.
set -eu
cd "${0%/*}/.."
docker=${DOCKER:-docker}

sh scripts/rootfs.sh build/rootfs
$docker build --quiet --network none --tag logreport:demo . >build/image-id
echo "== tests inside the container"
$docker run --rm --network none --entrypoint /bin/sh logreport:demo /app/tests/run.sh
echo "== the image at work"
$docker run --rm --interactive --network none logreport:demo -n 3 <data/access.log
