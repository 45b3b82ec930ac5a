package image

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/guestbin"
)

// TestRealMinimalImage builds the minimal image from the distribution's
// packages, in the directory that all tests of a run share, so that it is built
// once, and checks what was made.
func TestRealMinimalImage(t *testing.T) {
	if testing.Short() {
		t.Skip("builds an image from the distribution's mirror")
	}
	recipe, err := Minimal("amd64")
	if err != nil {
		t.Fatal(err)
	}
	dir := os.Getenv("SANDBOX_IMAGE_DIR")
	if dir == "" {
		dir = filepath.Join("..", "..", ".build", "images")
	}
	if dir, err = filepath.Abs(dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	img, err := Store{Dir: dir}.Build(ctx, recipe, BuildOptions{Progress: func(p Progress) {
		t.Logf("%3.0f %% %s: %s", 100*p.Fraction, p.Stage, p.Message)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := img.Verify(ctx); err != nil {
		t.Error(err)
	}
	if out, err := exec.Command(newToolbox().find("e2fsck"), "-fn", img.Root).CombinedOutput(); err != nil {
		t.Errorf("the file system is not clean: %v\n%s", err, out)
	}
	kernel := make([]byte, 4)
	if f, err := os.Open(img.Kernel); err != nil {
		t.Error(err)
	} else {
		if _, err := f.Read(kernel); err != nil || string(kernel) != "\x7fELF" {
			t.Errorf("the kernel begins with %q, %v", kernel, err)
		}
		f.Close()
	}
	if img.Manifest.AgentSHA256 != guestbin.Digest(recipe.Agent) || len(img.Manifest.Packages) == 0 {
		t.Errorf("manifest: agent %s, %d packages", img.Manifest.AgentSHA256, len(img.Manifest.Packages))
	}
	// debugfs reads the file system without mounting it.
	for path, want := range map[string]string{
		"/usr/lib/sandboxforge/agent": "Mode:  0755", "/workspace": "User:  1000", "/tmp": "Mode:  01777",
	} {
		out, err := exec.Command(newToolbox().find("debugfs"), "-R", "stat "+path, img.Root).CombinedOutput()
		if err != nil || !contains(out, want) {
			t.Errorf("%s: %v, want %q in\n%s", path, err, want, out)
		}
	}
}

func contains(out []byte, want string) bool {
	return strings.Contains(strings.Join(strings.Fields(string(out)), " "), strings.Join(strings.Fields(want), " "))
}
