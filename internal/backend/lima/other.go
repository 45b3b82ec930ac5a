//go:build !unix

package lima

import (
	"context"
	"runtime"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// Backend is unusable on this system.
type Backend struct{ cfg Config }

var _ backend.Backend = (*Backend)(nil)

// New makes a Backend whose Probe says that it is unusable here.
func New(c Config) (*Backend, error) { return &Backend{c}, c.check() }

func unusable() error {
	return fault.Wrap(backend.ErrUnsupported, fault.BackendUnavailable, "the lima backend runs on macOS and Linux, not on %s", runtime.GOOS).
		Next("use the backend hyperv on Windows, or SANDBOX_BACKEND=auto")
}

// Name implements backend.Backend.
func (*Backend) Name() string { return "lima" }

// Probe implements backend.Backend.
func (*Backend) Probe(context.Context, backend.Progress) (backend.Report, error) {
	return backend.Report{Problems: []backend.Problem{{
		What: "the lima backend runs on macOS and Linux, not on " + runtime.GOOS,
		Fix:  "use the backend hyperv on Windows", Fatal: true,
	}}}, nil
}

// Capabilities implements backend.Backend.
func (*Backend) Capabilities() backend.Capabilities { return backend.Capabilities{} }

// Create implements backend.Backend.
func (*Backend) Create(context.Context, backend.Spec) error { return unusable() }

// Start implements backend.Backend.
func (*Backend) Start(context.Context, string, backend.StartOptions) (backend.Machine, error) {
	return nil, unusable()
}

// Inspect implements backend.Backend.
func (*Backend) Inspect(_ context.Context, name string) (backend.Info, error) {
	return backend.Info{}, notFound(name)
}

// List implements backend.Backend.
func (*Backend) List(context.Context) ([]backend.Info, error) { return nil, nil }

// Delete implements backend.Backend.
func (*Backend) Delete(context.Context, string) error { return nil }
