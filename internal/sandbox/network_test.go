package sandbox

import (
	"testing"

	"sandboxforge/internal/config"
)

// TestTemplatesFitTheDefaults: or each create would pay for making the network
// and for growing the disk.
func TestTemplatesFitTheDefaults(t *testing.T) {
	res := config.Load(config.Input{WorkspaceRoot: t.TempDir()})
	if err := res.Err(); err != nil {
		t.Fatal(err)
	}
	if got := networkName(res.Config); got != defaultNetwork {
		t.Errorf("the default configuration wants the network %q, templates have %q", got, defaultNetwork)
	}
	if got := res.Config.VM.DiskBytes(); got != grownDisk {
		t.Errorf("the default disk has %d bytes, templates are grown to %d", got, int64(grownDisk))
	}
	named := res.Config
	named.Infra.NetworkName = "mine"
	if got := networkName(named); got != "mine" {
		t.Errorf("a configured network became %q", got)
	}
	prefixed := res.Config
	prefixed.Infra.NetworkNamePrefix = "p"
	if got := networkName(prefixed); got != "p-sandbox" {
		t.Errorf("a configured prefix gave %q", got)
	}
}
