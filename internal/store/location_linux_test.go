package store

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestMountTypes(t *testing.T) {
	const info = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
41 22 0:35 / /home/a\040b rw,nosuid,nodev - fuse.sshfs me@host:/home\040x rw,user_id=0
42 22 0:36 / /mnt/n rw - fuseblk /dev/sdb1 rw
43 22 0:37 / /mnt/v rw - virtiofs share rw
44 22 0:38 / /mnt/d rw - fuse user@host:/dir rw
45 22 0:39 / /mnt/e rw - fuse.gocryptfs /home/cipher rw
46 22 0:40 / /mnt/f rw - fuse //nas/share rw
broken line
47 22 0:41 / /mnt/g rw - 
`
	for _, test := range []struct {
		dev, fsType, source string
		remote              bool
	}{
		{"8:1", "ext4", "/dev/sda1", false},
		{"0:35", "fuse.sshfs", "me@host:/home x", true},
		{"0:36", "fuseblk", "/dev/sdb1", false},
		{"0:37", "virtiofs", "share", true},
		{"0:38", "fuse", "user@host:/dir", true},
		{"0:39", "fuse.gocryptfs", "/home/cipher", false},
		{"0:40", "fuse", "//nas/share", true},
		{"0:41", "fuse", "", false},
		{"9:9", "fuse", "", false},
	} {
		fsType, source := mountType(info, test.dev)
		if fsType != test.fsType || source != test.source || isRemoteFuse(fsType, source) != test.remote {
			t.Errorf("%s: %q from %q, remote %v; want %+v", test.dev, fsType, source, isRemoteFuse(fsType, source), test)
		}
	}
}

// TestReadOnlyDirectory opens the store as a user who may not write there;
// root may write everywhere, so then a child gives up its privileges.
func TestReadOnlyDirectory(t *testing.T) {
	root := t.TempDir()
	// The child of another user must reach the directory and the binary.
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, prepare := range map[string]func(t *testing.T, dir string){
		"no database yet": func(t *testing.T, dir string) {},
		"an old database": func(t *testing.T, dir string) {
			makeDB(t, filepath.Join(dir, "leases.db"))
			if err := os.Chmod(filepath.Join(dir, "leases.db"), 0o444); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(root, strings.ReplaceAll(name, " ", "-"))
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			prepare(t, dir)
			if err := os.Chmod(dir, 0o555); err != nil {
				t.Fatal(err)
			}
			cmd := child(t, "open", filepath.Join(dir, "leases.db"))
			if os.Getuid() == 0 {
				cmd.Path = filepath.Join(root, "child")
				if err := copyFile(cmd.Path, cmd.Args[0]); err != nil {
					t.Fatal(err)
				}
				cmd.Dir = "/"
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			}
			b, err := cmd.Output()
			out := string(b)
			if err == nil || !strings.Contains(out, "INTERNAL") || !strings.Contains(out, "cannot") || !strings.Contains(out, "lease database") {
				t.Errorf("the child: %v\n%s", err, out)
			}
		})
	}
}

func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}
