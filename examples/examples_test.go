package examples

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sandboxforge/internal/config"
)

// workspace writes the embedded tree out, as the demo does.
func workspace(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "w")
	if err := os.CopyFS(dir, Logreport()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func shell(t *testing.T, dir string, args ...string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("the sample's programs are shell scripts")
	}
	cmd := exec.Command("sh", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("sh %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestSampleTestsPass(t *testing.T) {
	out := shell(t, workspace(t), "tests/run.sh")
	if strings.Contains(out, "not ok") || strings.Count(out, "\nok ") < 5 {
		t.Error(out)
	}
}

// TestSampleNoticesAMistake: tests that cannot fail show nothing.
func TestSampleNoticesAMistake(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the sample's programs are shell scripts")
	}
	dir := workspace(t)
	path := filepath.Join(dir, "lib", "report.awk")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	spoilt := bytes.Replace(text, []byte("a[j - gap] > v"), []byte("a[j - gap] < v"), 1)
	if bytes.Equal(text, spoilt) {
		t.Fatal("nothing was spoilt")
	}
	os.Chmod(path, 0o600)
	if err := os.WriteFile(path, spoilt, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "tests/run.sh")
	cmd.Dir = dir
	if out, err := cmd.Output(); err == nil || !bytes.Contains(out, []byte("not ok")) {
		t.Errorf("the tests pass with a wrong sort:\n%s", out)
	}
}

func TestReadmeShowsWhatTheProgramPrints(t *testing.T) {
	dir := workspace(t)
	readme, err := fs.ReadFile(Logreport(), "README.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(shell(t, dir, "bin/logreport", "data/access.log"), "\n") {
		if strings.HasPrefix(line, "requests") || strings.HasPrefix(line, "latency") {
			if !bytes.Contains(readme, []byte("    "+line+"\n")) {
				t.Errorf("README.md lacks %q", line)
			}
		}
	}
}

func TestConfigurationsAreValid(t *testing.T) {
	home := t.TempDir()
	load := func(root string) config.Config {
		r := config.Load(config.Input{UserHome: home, ConfigHome: home, WorkspaceRoot: root, Backend: "qemu"})
		if !r.Valid() || len(r.Diagnostics) != 0 {
			t.Fatalf("%s: %v", root, r.Diagnostics)
		}
		return r.Config
	}
	if c := load(workspace(t)); c.VM.MemoryGiB != 1 || c.Infra.IncludeServicesByDefault {
		t.Errorf("logreport's file was not read: %+v", c.VM)
	}
	sample, err := filepath.Abs("sample-workspace")
	if err != nil {
		t.Fatal(err)
	}
	if c := load(sample); !c.Infra.MySQL.Enabled || !c.Infra.Redis.Enabled || c.Infra.Postgres.Enabled || c.Infra.MySQL.Database != "links" {
		t.Errorf("the sample's file was not read: %+v", c.Infra)
	}
}
