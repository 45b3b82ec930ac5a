package leftovers

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var check = flag.Bool("check", false, "this is the end of a test run: look for what it left")

// TestNothingIsLeft looks at every process whose environment carries this
// run's mark, and at the temporary directories of the tests.
//
// It is called once more by scripts/test.sh when all other tests have ended;
// within `go test ./...` others still run, and it only checks that it could
// see a leftover if there were one.
func TestNothingIsLeft(t *testing.T) {
	run := os.Getenv("SANDBOXFORGE_TEST_RUN")
	if !*check {
		if run == "" {
			run = "not-marked"
			t.Setenv("SANDBOXFORGE_TEST_RUN", run)
		}
		if len(marked(t, "PATH=")) == 0 {
			t.Fatal("no process with a PATH is seen: a leftover would be overlooked")
		}
		return
	}
	if run == "" {
		t.Fatal("SANDBOXFORGE_TEST_RUN is not set: call this through scripts/test.sh")
	}
	for _, p := range marked(t, "SANDBOXFORGE_TEST_RUN="+run+"\x00") {
		if strings.Contains(p.cmd, "qemu-system") || strings.Contains(p.cmd, "__supervise") ||
			strings.Contains(p.cmd, "sandboxforge-mcp-server") || strings.Contains(p.cmd, "sandboxforge-agent") || strings.Contains(p.cmd, "mmdebstrap") {
			t.Errorf("left running: pid %d: %s", p.pid, p.cmd)
		}
	}
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), "sbxtest-*"))
	if err != nil {
		t.Fatal(err)
	}
	began := runBegan(t, run)
	for _, d := range dirs {
		// What an earlier run left that was killed is not this run's fault.
		if info, err := os.Stat(d); err != nil || info.ModTime().Before(began) {
			continue
		}
		disks, _ := filepath.Glob(filepath.Join(d, "vms", "*", "*"))
		t.Errorf("left on disk: %s %v", d, disks)
	}
}

// runBegan reads the start of the run from its mark, <pid>-<Unix seconds>.
func runBegan(t *testing.T, run string) time.Time {
	t.Helper()
	_, at, found := strings.Cut(run, "-")
	seconds, err := strconv.ParseInt(at, 10, 64)
	if !found || err != nil {
		t.Fatalf("SANDBOXFORGE_TEST_RUN is %q, not <pid>-<Unix seconds>: call this through scripts/test.sh", run)
	}
	return time.Unix(seconds, 0)
}

type process struct {
	pid int
	cmd string
}

// marked lists the other processes with the given text in their environment.
func marked(t *testing.T, text string) []process {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []process
	for _, d := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(d))
		env, err := os.ReadFile(filepath.Join(d, "environ"))
		if err != nil || pid == os.Getpid() || pid == os.Getppid() || !bytes.Contains(append(env, 0), []byte(text)) {
			continue
		}
		cmd, _ := os.ReadFile(filepath.Join(d, "cmdline"))
		found = append(found, process{pid, fmt.Sprintf("%.300s", bytes.ReplaceAll(cmd, []byte{0}, []byte{' '}))})
	}
	return found
}
