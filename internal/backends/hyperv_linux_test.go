package backends

import (
	"os"
	"path/filepath"
	"testing"

	"sandboxforge/internal/backend/hyperv/standin"
	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(standin.StateEnv); dir != "" {
		os.Exit(standin.Main(dir, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// TestHyperVFromSettings: elsewhere than on Windows the backend is there for
// tests alone, and then is what the environment says.
func TestHyperVFromSettings(t *testing.T) {
	home, world := t.TempDir(), t.TempDir()
	base := filepath.Join(home, "base.vhdx")
	env := map[string]string{"SANDBOXFORGE_HOME": home, "HOME": home, "SANDBOX_BACKEND": "hyperv", "HYPERV_BASE_VHDX": base, "HYPERV_SWITCH_NAME": "lab"}
	settings, err := config.LoadSettings(func(k string) string { return env[k] }, "linux")
	if err != nil {
		t.Fatal(err)
	}
	bs := New(settings, nil)
	if _, err := bs.ByName("hyperv"); !fault.Is(err, fault.BackendUnavailable) {
		t.Errorf("without a stand-in: %v", err)
	}
	if err := standin.New(world); err != nil {
		t.Fatal(err)
	}
	if err := standin.MakeDisk(base, 1<<30); err != nil {
		t.Fatal(err)
	}
	t.Setenv(testPowerShell, standin.Executable(t, world))
	_, err = bs.Select(t.Context(), nil)
	if f := fault.From(err); f == nil || f.Code != fault.BackendUnavailable || f.Cause != `there is no virtual switch "lab"` {
		t.Fatalf("without the switch: %+v", f)
	}
	if err := standin.Update(world, func(w *standin.World) {
		w.Switches = append(w.Switches, standin.Switch{ID: "00000000-0000-4000-8000-000000000001", Name: "lab", Type: "External"})
	}); err != nil {
		t.Fatal(err)
	}
	sel, err := bs.Select(t.Context(), nil)
	if err != nil || sel.Backend.Name() != "hyperv" || !sel.Report.Usable {
		t.Errorf("%+v, %v", sel.Report, err)
	}
}
