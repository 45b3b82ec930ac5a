package backends

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sandboxforge/internal/config"
)

// TestAnyHomeHasABackend makes the backend for state directories of every
// length around the bound of a socket address.
func TestAnyHomeHasABackend(t *testing.T) {
	base, err := os.MkdirTemp("", "sbxtest-home-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	for n := 1; n < 120; n++ {
		home := filepath.Join(base, strings.Repeat("h", n))
		env := map[string]string{"SANDBOXFORGE_HOME": home, "HOME": base, "XDG_RUNTIME_DIR": ""}
		settings, err := config.LoadSettings(func(k string) string { return env[k] }, runtime.GOOS)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(settings, nil).ByName("qemu"); err != nil {
			t.Errorf("a state directory of %d bytes: %v", len(home), err)
		}
		if run, err := settings.RunDir(); err == nil && !strings.HasPrefix(run, base) {
			os.Remove(run)
		}
	}
}
