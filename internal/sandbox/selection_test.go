package sandbox

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
)

type noBackends struct{}

func (noBackends) Select(context.Context, backend.Progress) (Selected, error) {
	return Selected{}, fault.New(fault.BackendUnavailable, "nothing is installed")
}
func (noBackends) ByName(string) (Selected, error) {
	return Selected{}, fault.New(fault.BackendUnavailable, "none")
}
func (noBackends) All() []backend.Backend { return nil }

// lines passes on what is logged.
type lines chan string

func (l lines) Write(p []byte) (int, error) { l <- string(p); return len(p), nil }

// TestAServerThatCanMakeNoVMSaysSoAtOnce, and not at the first create alone.
func TestAServerThatCanMakeNoVMSaysSoAtOnce(t *testing.T) {
	dir := t.TempDir()
	settings, err := config.LoadSettings(func(k string) string {
		return map[string]string{"HOME": dir, "SANDBOXFORGE_HOME": filepath.Join(dir, "home")}[k]
	}, "linux")
	if err != nil {
		t.Fatal(err)
	}
	log := make(lines, 16)
	s, err := Open(t.Context(), Options{Settings: settings, Backends: noBackends{}, Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.CheckBackend()
	select {
	case line := <-log:
		if !strings.Contains(line, "sandboxforge doctor") || !strings.Contains(line, "nothing is installed") {
			t.Error(line)
		}
	case <-t.Context().Done():
		t.Error("nothing was said")
	}
}
