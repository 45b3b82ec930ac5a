# SandboxForge. `make demo` and `make test` are all that a newcomer needs;
# both install what is missing on Debian or Ubuntu (see scripts/setup.sh).

# What scripts/setup.sh fetched where the distribution's Go is too old.
export PATH := $(CURDIR)/.build/go/bin:$(PATH):/usr/local/go/bin
GO        ?= go
BIN       := bin
BUILD     := .build
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS   := -s -w -X sandboxforge/internal/version.version=$(VERSION)
GOFLAGS_  := -trimpath -ldflags '$(LDFLAGS)'
# Guest images of the tests live in the checkout, so that a clean clone proves
# the build of the image too.
TEST_IMAGES := $(CURDIR)/$(BUILD)/images

.PHONY: help demo test test-unit setup setup-lint build guestbin run image lint cross conformance bench clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: ## install the host packages that are missing (asks sudo if it must)
	@sh scripts/setup.sh

guestbin: ## cross-build the programs that run inside guests
	@$(GO) run ./internal/guestbin/gen

build: guestbin ## bin/sandboxforge and bin/sandboxforge-mcp-server
	@mkdir -p $(BIN)
	@echo "building $(BIN)/sandboxforge and $(BIN)/sandboxforge-mcp-server"
	@CGO_ENABLED=0 $(GO) build $(GOFLAGS_) -o $(BIN)/ ./cmd/sandboxforge ./cmd/sandboxforge-mcp-server

demo: setup build ## the main flow through MCP on a real VM, from nothing to the result
	@$(BIN)/sandboxforge demo

run: setup build ## start the server: streamable HTTP on 127.0.0.1:8765/mcp
	@$(BIN)/sandboxforge-mcp-server

image: setup build ## build the default guest image
	@$(BIN)/sandboxforge image build

test: setup build ## every test, real VMs included
	@GO='$(GO)' SANDBOX_IMAGE_DIR='$(TEST_IMAGES)' sh scripts/test.sh

test-unit: guestbin ## tests that need no VM
	@$(GO) test -short ./...

lint: guestbin ## gofmt, go vet for every platform, staticcheck
	@GO='$(GO)' sh scripts/lint.sh

cross: guestbin ## build for every platform
	@GO='$(GO)' sh scripts/cross.sh

conformance: build ## the official MCP suite and inspector (needs npm)
	@bash scripts/conformance.sh

bench: setup build ## what docs/PERFORMANCE.md shows
	@$(BIN)/sandboxforge bench

clean: ## remove what was built in this checkout
	@rm -rf $(BIN) $(BUILD) internal/guestbin/bin/*.gz
