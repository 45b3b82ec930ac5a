package smalldisk

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// Run runs the calling test once more, in a process with a mount namespace of
// its own, and fails it if that fails. There, inside is true and dir is a file
// system of the given size, in tmpfs's words; ",nr_inodes=N" after it bounds
// how many files it can hold. Where a user gets no such namespace the test is
// skipped.
func Run(t *testing.T, size string) (dir string, inside bool) {
	t.Helper()
	const where = "SANDBOXFORGE_TEST_SMALL_DISK"
	dir = os.Getenv(where)
	if dir != "" {
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
			t.Fatal("no small disk: ", err)
		}
		return dir, true
	}
	c := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), where+"="+t.TempDir())
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	out, err := c.CombinedOutput()
	if errors.Is(err, fs.ErrPermission) || strings.Contains(string(out), "no small disk") {
		t.Skipf("this system gives users no mount namespaces: %v %s", err, out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return "", false
}
