//go:build !linux

package image

import (
	"context"
	"runtime"

	"sandboxforge/internal/fault"
)

// Build is only possible on Linux; elsewhere it is UNSUPPORTED_BY_BACKEND.
func (s Store) Build(context.Context, Recipe, BuildOptions) (*Image, error) {
	return nil, fault.New(fault.UnsupportedByBackend, "guest images cannot be built on %s", runtime.GOOS).
		Because("the qemu backend and its guest images are for Linux hosts").
		Next("use this platform's own backend, which needs no guest image")
}
