package backends

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"runtime"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/backend/hyperv"
	"sandboxforge/internal/sandbox"
	"sandboxforge/internal/supervisor"
)

// testPowerShell names, on systems that are not Windows, the program that takes
// the place of powershell.exe in tests. There is no default: without it the
// backend is not to be had there.
const testPowerShell = "SANDBOXFORGE_TEST_POWERSHELL"

func init() {
	supervisor.RegisterBackend("hyperv", func(raw json.RawMessage) (backend.Backend, error) {
		var c hyperv.Config
		if err := json.Unmarshal(raw, &c); err != nil {
			return nil, fmt.Errorf("hyperv configuration: %w", err)
		}
		return newHyperV(c, nil)
	})
}

// newHyperV adds what a configuration cannot carry.
func newHyperV(c hyperv.Config, log *slog.Logger) (backend.Backend, error) {
	c.Logger = log
	return hyperv.New(c)
}

func (s *Set) hyperv() (sandbox.Selected, error) {
	h := s.settings.HyperV
	c := hyperv.Config{
		StorageDir:  h.StorageDir,
		BaseVHDX:    h.BaseVHDX,
		SwitchName:  h.SwitchName,
		SSHUser:     h.SSHUser,
		SSHPort:     h.SSHPort,
		SSHKeyPath:  h.SSHKeyPath,
		BootTimeout: h.BootTimeout,
	}
	if runtime.GOOS != "windows" {
		c.PowerShell = os.Getenv(testPowerShell)
	}
	raw, err := json.Marshal(c)
	if err != nil {
		return sandbox.Selected{}, err
	}
	b, err := newHyperV(c, s.log)
	if err != nil {
		return sandbox.Selected{}, err
	}
	return sandbox.Selected{Backend: b, Config: raw}, nil
}
