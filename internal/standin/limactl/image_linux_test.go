package limactl

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestImage: the guest's file system has what was written into it, and is clean.
func TestImage(t *testing.T) {
	if testing.Short() {
		t.Skip("builds an image")
	}
	dir := os.Getenv("SANDBOX_IMAGE_DIR")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", ".build", "images")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Image(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(got, "disk.raw")
	for path, want := range map[string]string{
		"/etc/passwd": "lima:x:501:501::/home/lima:/bin/bash\n", "/etc/sudoers.d/lima": "NOPASSWD", "/usr/sbin/standin-init": "sshd -D",
	} {
		out, err := exec.Command("debugfs", "-R", "cat "+path, disk).Output()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v: %q", path, err, out)
		}
		if path == "/etc/passwd" && (strings.Contains(string(out), "\nsandbox:") || !strings.HasPrefix(string(out), "root:")) {
			t.Errorf("%s: %q", path, out)
		}
	}
	if out, err := exec.Command("e2fsck", "-fn", disk).CombinedOutput(); err != nil {
		t.Errorf("e2fsck: %v: %s", err, out)
	}
}
