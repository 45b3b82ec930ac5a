package limactl

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "limactl" {
		os.Exit(Main(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// limactl runs the stand-in in a home of its own.
type program struct {
	t    *testing.T
	home string
	env  []string
}

func newProgram(t *testing.T) *program {
	t.Helper()
	dir, err := os.MkdirTemp("", "st")
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, home: dir, env: append(os.Environ(), "LIMA_HOME="+dir, "LIMACTL_STANDIN_AS_ROOT=1", "LIMACTL_STANDIN_DRIVER=fake")}
	t.Cleanup(func() {
		for _, i := range p.list() {
			p.run("delete", "--force", "--tty=false", i.Name)
		}
		os.RemoveAll(dir)
	})
	return p
}

func (p *program) run(args ...string) (code int, stdout, stderr string) {
	p.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Args[0], cmd.Env = "limactl", p.env
	var out, errb bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errb
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		p.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errb.String()
}

func (p *program) ok(args ...string) string {
	p.t.Helper()
	code, out, errs := p.run(args...)
	if code != 0 {
		p.t.Fatalf("limactl %q: %d: %s", args, code, errs)
	}
	return out
}

func (p *program) list() (all []*instance) {
	p.t.Helper()
	_, out, _ := p.run("list", "--format", "json")
	for line := range strings.Lines(out) {
		var i instance
		if err := json.Unmarshal([]byte(line), &i); err != nil {
			p.t.Fatalf("%q: %v", line, err)
		}
		all = append(all, &i)
	}
	return all
}

// TestTranscript: what the real program was seen to say and to exit with, in the
// states s (stopped), r (running) and none, of the instance t1.
func TestTranscript(t *testing.T) {
	p := newProgram(t)
	p.ok("create", "--tty=false", "--name", "s1", "--plain", "template:docker")
	p.ok("create", "--tty=false", "--name", "r1", "--plain", "template:docker")
	p.ok("start", "--tty=false", "r1")
	for _, c := range []struct {
		args string
		code int
		says string // on stderr
	}{
		{"create --tty=false --name s1 --plain template:docker", 1, "level=fatal msg=\"instance `s1` already exists\""},
		{"create --tty=false --name bad--name --plain template:docker", 1, "level=fatal"},
		{"create --tty=false --name " + strings.Repeat("n", 77) + " --plain template:docker", 1, "level=fatal"},
		{"create --tty=false --name x1 --plain --port-range 1 template:docker", 1, "unknown flag: --port-range"},
		{"create --name x1 --plain template:docker", 1, "--tty=false"}, // the real one would ask, and wait
		{"shell --workdir / x true", 1, "instance `x` does not exist, run `limactl create x`"},
		{"copy x:/a /b", 1, "instance `x` does not exist, run `limactl create x`"},
		{"shell --workdir / s1 true", 1, "instance `s1` is stopped, run `limactl start s1`"},
		{"stop x", 1, "lima.yaml: no such file or directory"},
		{"snapshot create x --tag a", 1, "lima.yaml: no such file or directory"},
		{"stop s1", 1, "expected status `Running`, got `Stopped`"},
		{"clone --tty=false x y", 1, "instance `x` not found"},
		{"edit --tty=false --cpus 2 x", 1, "instance `x` not found"},
		{"clone --tty=false r1 y", 1, "level=fatal"},
		{"clone --tty=false s1 r1", 1, "instance `r1` already exists"},
		{"delete --tty=false x", 0, "level=warning"},
		{"delete --tty=false r1", 1, "expected status `Stopped`, got `Running`"},
		{"start --tty=false r1", 0, "already running"},
		{"frobnicate", 1, "unknown command"},
	} {
		code, out, errs := p.run(strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(strings.ReplaceAll(errs, `\"`, `"`), c.says) || out != "" {
			t.Errorf("limactl %s: exit %d, stdout %q, stderr %q; want %d and %q", c.args, code, out, errs, c.code, c.says)
		}
	}
	var left []string
	for _, i := range p.list() {
		left = append(left, i.Name+" "+i.Status)
	}
	if got := strings.Join(left, ", "); got != "r1 Running, s1 Stopped" {
		t.Errorf("after all that: %s", got)
	}
}

// TestTraps: what the real program does and one would rather it did not.
func TestTraps(t *testing.T) {
	p := newProgram(t)
	if code, out, _ := p.run("list", "--format", "json"); code != 0 || out != "" {
		t.Errorf("no instances: %d %q", code, out)
	}
	// A missing name is made, with the host's home in it.
	p.ok("start", "--tty=false", "oops")
	all := p.list()
	if len(all) != 1 || all[0].Name != "oops" || all[0].Status != "Running" || len(all[0].Config["mounts"].([]any)) != 1 {
		t.Errorf("%+v", all)
	}
	if all[0].HostAgentPID == 0 || all[0].DriverPID == 0 || all[0].SSHLocalPort == 0 {
		t.Errorf("%+v", all[0])
	}
	p.ok("stop", "--tty=false", "oops")
	if all = p.list(); all[0].Status != "Stopped" || all[0].SSHLocalPort == 0 { // stale, not absent
		t.Errorf("%+v", all[0])
	}
	// A create that fails on its downloads leaves the name taken.
	if code, _, _ := p.run("create", "--tty=false", "--name", "c1", "template:docker"); code != 1 {
		t.Errorf("a create with containerd and without a network: exit %d", code)
	}
	if code, _, errs := p.run("create", "--tty=false", "--name", "c1", "--plain", "template:docker"); code != 1 || !strings.Contains(errs, "already exists") {
		t.Errorf("%d %s", code, errs)
	}
	p.ok("delete", "--force", "--tty=false", "c1")
	// Plain mode leaves proxies and the resolver on; an override beats plain.
	p.ok("create", "--tty=false", "--name", "p1", "--plain", "--mount-none", "template:docker")
	if err := os.WriteFile(filepath.Join(p.home, "_config", "override.yaml"), []byte(`{"mounts": [{"location": "~", "writable": true}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, i := range p.list() {
		if i.Name != "p1" {
			continue
		}
		c := i.Config
		if len(c["mounts"].([]any)) != 1 || c["propagateProxyEnv"] != true || c["hostResolver"].(doc)["enabled"] != true || len(c["portForwards"].([]any)) != 0 {
			t.Errorf("%+v", c)
		}
	}
	// Names that fit the pattern and not a socket's address.
	if code, _, errs := p.run("create", "--tty=false", "--name", strings.Repeat("n", 76), "--plain", "template:docker"); code != 1 || !strings.Contains(errs, "UNIX_PATH_MAX") {
		t.Errorf("%d %s", code, errs)
	}
}

func TestRefusesRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to be refused")
	}
	p := newProgram(t)
	env := p.env
	p.env = append(env, "LIMACTL_STANDIN_AS_ROOT=")
	code, _, errs := p.run("list", "--format", "json")
	p.env = env
	if code != 1 || errs != "limactl: must not run as the root user\n" {
		t.Errorf("%d %q", code, errs)
	}
}
