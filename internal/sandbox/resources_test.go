package sandbox

import (
	"strings"
	"testing"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

// TestARefusalSuggestsOnlyWhatWasAsked: a size that the caller did not choose, a
// snapshot's or what a template's state takes, is no value for [vm].
func TestARefusalSuggestsOnlyWhatWasAsked(t *testing.T) {
	big := config.VMConfig{CPUs: 64, MemoryGiB: 400, DiskGiB: 401}
	for name, c := range map[string]struct {
		check          hostCheck
		suggests       bool
		says, isSilent string
	}{
		"create":   {hostCheck{vm: big}, true, "create_instance with overrides", "template"},
		"snapshot": {hostCheck{vm: big, given: true}, false, "the snapshot's size", "overrides"},
		"template": {hostCheck{vm: big, template: true}, false, "fewer processors or less memory", "disk_gib"},
	} {
		t.Run(name, func(t *testing.T) {
			c.check.cpus, c.check.available, c.check.diskFree = 2, 8*gib, 50*gib
			err := c.check.decide(store.Usage{})
			if !fault.Is(err, fault.InsufficientHostResources) {
				t.Fatal(err)
			}
			f := fault.From(err)
			if _, ok := f.Details["suggested_vm"]; ok != c.suggests {
				t.Errorf("suggested_vm: %v", f.Details["suggested_vm"])
			}
			checks, _ := f.Details["failed_checks"].([]string)
			if len(checks) != 3 {
				t.Errorf("failed checks: %q", checks)
			}
			text := strings.Join(append(checks, f.NextSteps...), "\n")
			if !strings.Contains(text, c.says) || strings.Contains(text, c.isSilent) {
				t.Errorf("want %q and not %q in:\n%s", c.says, c.isSilent, text)
			}
		})
	}
}
