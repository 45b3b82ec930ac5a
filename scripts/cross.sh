#!/bin/sh
# Builds the host binaries for every platform, to show that they build.
set -eu
GO=${GO:-go}
for target in linux/amd64 linux/arm64 darwin/arm64 windows/amd64; do
	CGO_ENABLED=0 GOOS=${target%/*} GOARCH=${target#*/} $GO build -trimpath -o ".build/cross/$(echo $target | tr / -)/" \
		./cmd/sandboxforge ./cmd/sandboxforge-mcp-server
	echo "cross: $target"
done
