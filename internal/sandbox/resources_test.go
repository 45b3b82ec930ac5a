package sandbox

import (
	"strings"
	"testing"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

// TestEarlyCountsOnlyWhatStays: a judgement before a template is made must not
// refuse what the admission would let in.
func TestEarlyCountsOnlyWhatStays(t *testing.T) {
	c := hostCheck{vm: config.VMConfig{CPUs: 1, MemoryGiB: 2, DiskGiB: 5}, cpus: 2, available: 3 * gib, diskFree: 50 * gib, touched: map[string]int64{"agent-1": gib / 2}}
	lease := func(k store.Kind) store.Usage {
		return store.Usage{Live: []store.Lease{{Kind: k, MemoryMiB: 2048, BackendInstanceName: "agent-1"}}}
	}
	for kind, fits := range map[store.Kind]bool{store.KindInstance: false, store.KindTemplate: true, store.KindPool: true} {
		if err := c.early(lease(kind)); (err == nil) != fits {
			t.Errorf("%s: %v, want fits %v", kind, err, fits)
		}
		if err := c.decide(lease(kind)); err == nil {
			t.Errorf("%s: the admission counts all", kind)
		}
	}
}

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
