package cli

import (
	"context"
	"log/slog"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/backends"
	"sandboxforge/internal/config"
	"sandboxforge/internal/sandbox"
)

// openService opens the same service as the server has.
func openService(ctx context.Context, s *config.Settings, log *slog.Logger) (Service, error) {
	svc, err := sandbox.Open(ctx, sandbox.Options{Settings: s, Backends: backends.New(s, log), Logger: log})
	if err != nil {
		return nil, err // not a nil *sandbox.Service in an interface
	}
	return svc, nil
}

func allBackends(s *config.Settings) []backend.Backend {
	return backends.New(s, slog.New(slog.DiscardHandler)).All()
}
