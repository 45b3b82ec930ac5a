#!/bin/sh
# gofmt, go vet on every platform that is built for, staticcheck with the list
# of staticcheck.conf.
set -eu
GO=${GO:-go}
bad=$(gofmt -l $(git ls-files '*.go'))
if [ -n "$bad" ]; then
	printf 'not gofmt-ed:\n%s\n' "$bad" >&2
	exit 1
fi
host='./cmd/sandboxforge ./cmd/sandboxforge-mcp-server'
$GO vet ./...
for os in darwin windows; do
	GOOS=$os CGO_ENABLED=0 $GO vet $(GOOS=$os CGO_ENABLED=0 $GO list -deps $host | grep '^sandboxforge/')
done
GOARCH=arm64 CGO_ENABLED=0 $GO vet ./cmd/...
$GO tool staticcheck ./...
echo "lint: clean"
