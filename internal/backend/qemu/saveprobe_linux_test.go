package qemu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxforge/internal/backend"
)

func probeReport(t *testing.T, b *Backend) string {
	t.Helper()
	r, err := b.Probe(t.Context(), nil)
	if err != nil || !r.Usable {
		t.Fatalf("%+v, %v", r, err)
	}
	all := append([]string{}, r.Evidence...)
	for _, p := range r.Problems {
		if p.Fatal {
			t.Errorf("fatal: %s", p.What)
		}
		all = append(all, p.What+" -> "+p.Fix)
	}
	return strings.Join(all, "\n")
}

// TestHowVMsAreSaved: a probe says it, with the remedy where it is not the best
// way, and remembers only what nobody has to mend.
func TestHowVMsAreSaved(t *testing.T) {
	for _, c := range []struct {
		name       string
		blind      bool
		say        string
		remembered int
	}{
		{"read", false, "made the fast way", 1},
		{"sent", true, "QEMU sends the memory: its process cannot be read (" + errBlind.Error() + ") -> ", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := newConfig(t)
			conf.CacheDir, conf.Blind, conf.Accel = t.TempDir(), c.blind, "tcg"
			b, conf := openBackend(t, conf)
			for range 2 {
				if got := probeReport(t, b); !strings.Contains(got, c.say) {
					t.Errorf("the probe does not say %q:\n%s", c.say, got)
				}
			}
			files, err := filepath.Glob(filepath.Join(conf.CacheDir, "saves-*.json"))
			if err != nil || len(files) != c.remembered {
				t.Errorf("remembered: %q, %v", files, err)
			}
			if left, _ := filepath.Glob(filepath.Join(conf.CacheDir, ".saves-*")); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// TestQEMUThatCannotSave: one that lacks a command of saves.
func TestQEMUThatCannotSave(t *testing.T) {
	all := saveCommands
	t.Cleanup(func() { saveCommands = all })
	saveCommands = append([]string{"a-command-of-later"}, all...)
	conf := newConfig(t)
	conf.CacheDir, conf.Accel = t.TempDir(), "tcg"
	b, _ := openBackend(t, conf)
	if got := probeReport(t, b); !strings.Contains(got, "VMs cannot be saved") || !strings.Contains(got, "a-command-of-later") {
		t.Errorf("the probe says:\n%s", got)
	}
}

// TestTrialOfNoQEMU: what does not answer is no verdict, and no hindrance.
func TestTrialOfNoQEMU(t *testing.T) {
	b, _ := newBackend(t)
	bin := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(bin, []byte("#!/bin/sh\necho broken >&2\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	v, err := b.saveWay(t.Context(), bin, facts{})
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("%+v, %v", v, err)
	}
	var r backend.Report
	b.reportSaves(t.Context(), &r, bin, facts{})
	if len(r.Problems) > 0 || len(r.Evidence) != 1 {
		t.Errorf("%+v", r)
	}
}
