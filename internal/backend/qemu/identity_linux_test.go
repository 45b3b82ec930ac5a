package qemu

import (
	"context"
	"crypto/rand"
	"path/filepath"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/guest"
)

// TestClonesDrawDifferentNumbers: each clone is given an entropy of its own
// before its first process, which therefore draws numbers that no other clone
// does, also without the device that tells a kernel of its cloning.
func TestClonesDrawDifferentNumbers(t *testing.T) {
	b, _ := newBackend(t)
	b.noGeneration = true
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	if err := b.Create(ctx, spec("source")); err != nil {
		t.Fatal(err)
	}
	v, c := bootVM(t, b, "source")
	first := func(c *guest.Client, id string) string {
		t.Helper()
		out := ""
		p, err := c.Run(ctx, id, guest.Spec{Command: "head -c 16 /dev/urandom | od -An -tx1"}, func(o guest.Output) { out += string(o.Data) })
		if err != nil || p.ExitCode != 0 || len(out) < 32 {
			t.Fatalf("%v, exit code %d, %q", err, p.ExitCode, out)
		}
		return out
	}
	first(c, "before") // the programs are in memory, so that clones do the same
	dir := filepath.Join(t.TempDir(), "state")
	v.mu.Lock()
	v.stream.Close() // a saved guest has no host that listens
	v.mu.Unlock()
	if _, err := v.Save(ctx, dir, backend.SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	draw := func(name string, seeded bool) string {
		t.Helper()
		s := spec(name)
		s.From = dir
		if err := b.Create(ctx, s); err != nil {
			t.Fatal(err)
		}
		v, c := bootVM(t, b, name)
		if seeded {
			entropy := make([]byte, 64)
			rand.Read(entropy)
			if err := c.SetIdentity(ctx, guest.Identity{Hostname: name, Time: time.Now(), Entropy: entropy}); err != nil {
				t.Fatal(err)
			}
		}
		out := first(c, "first")
		if err := v.Stop(ctx, 0); err != nil {
			t.Fatal(err)
		}
		return out
	}
	if a, z := draw("vm-1", true), draw("vm-2", true); a == z {
		t.Errorf("two clones draw the same: %s", a)
	}
	// What the kernel mixes in by itself (the times of interrupts) may tell
	// them apart too; this shows what there would be to lose.
	a, z := draw("vm-3", false), draw("vm-4", false)
	t.Logf("without an entropy of their own: %q and %q, the same: %v", a, z, a == z)
	if err := b.Delete(ctx, "source"); err != nil {
		t.Fatal(err)
	}
}
