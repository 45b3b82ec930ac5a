package lima

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// limactl runs the stand-in as a person would.
func limactlByHand(t *testing.T, c Config, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(within(t, time.Minute), c.Limactl, args...)
	cmd.Env = append(append(os.Environ(), "LIMA_HOME="+c.LimaHome), c.Env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("limactl %q: %v: %s", args, err, out)
	}
	return string(out)
}

// TestIsolation: what is made of a stock template has nothing of the host.
func TestIsolation(t *testing.T) {
	c := newConfig(t)
	b := newBackend(t, c)
	s := spec("vm-1")
	s.CPUs, s.MemoryMiB, s.DiskBytes = 3, 1500, 10<<30+1
	if err := b.Create(within(t, time.Minute), s); err != nil {
		t.Fatal(err)
	}
	l, ok, err := b.instance(within(t, time.Minute), "vm-1")
	if err != nil || !ok {
		t.Fatal(err)
	}
	if leaks := l.Config.leaks(); len(leaks) > 0 {
		t.Errorf("the instance: %q", leaks)
	}
	if l.CPUs != 3 || l.Memory != 1500<<20 || l.Disk != 10<<30+1<<20 || l.VMType != "qemu" {
		t.Errorf("asked for %+v, got %+v", s, l)
	}
}

// TestUndoneIsolation: whatever brings the host back into a VM, the VM is not
// started, and the error names what it is.
func TestUndoneIsolation(t *testing.T) {
	override := func(text string) func(*testing.T, Config) {
		return func(t *testing.T, c Config) {
			dir := filepath.Join(c.LimaHome, "_config")
			if err := os.WriteFile(filepath.Join(dir, "override.yaml"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	edited := func(key string, value any) func(*testing.T, Config) {
		return func(t *testing.T, c Config) {
			path := filepath.Join(c.LimaHome, "vm-1", "lima.yaml")
			var d map[string]any
			if err := readJSON(path, &d); err != nil {
				t.Fatal(err)
			}
			d[key] = value
			text, err := json.Marshal(d)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	type object = map[string]any
	for what, c := range map[string]struct {
		undo func(*testing.T, Config)
		says string
	}{
		"override with a writable home": {override(`{"mounts": [{"location": "~", "writable": true}]}`), "mounts"},
		"override without plain mode":   {override(`{"plain": false}`), "plain"},
		"override with the ssh agent":   {override(`{"ssh": {"forwardAgent": true}}`), "forwardAgent"},
		"override that says nothing":    {override(`{}`), "override.yaml"},
		"default.yaml": {func(t *testing.T, c Config) {
			if err := os.WriteFile(filepath.Join(c.LimaHome, "_config", "default.yaml"), []byte(`{"mounts": [{"location": "/"}]}`), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "default.yaml"},
		"proxies":                 {edited("propagateProxyEnv", true), "propagateProxyEnv"},
		"the resolver":            {edited("hostResolver", object{"enabled": true}), "hostResolver"},
		"a forward after plain":   {override(`{"portForwards": [{"guestPort": 22, "hostPort": 2222, "static": true}]}`), "portForwards"},
		"X11":                     {edited("ssh", object{"forwardX11": true}), "forwardX11"},
		"keys of ~/.ssh":          {edited("ssh", object{"loadDotSSHPubKeys": true}), "loadDotSSHPubKeys"},
		"copies to the host":      {edited("copyToHost", []object{{"guest": "/etc/passwd", "host": "/tmp/x"}}), "copyToHost"},
		"another network":         {edited("networks", []object{{"lima": "bridged"}}), "networks"},
		"another instance's disk": {edited("additionalDisks", []object{{"name": "d"}}), "additionalDisks"},
		"a playbook on the host":  {edited("provision", []object{{"mode": "ansible", "playbook": "x.yaml"}}), "ansible"},
		"more memory":             {edited("memory", "64GiB"), "memory"},
		"a larger disk":           {edited("disk", "900GiB"), "disk"},
		"more CPUs":               {edited("cpus", 64), "CPUs"},
	} {
		t.Run(what, func(t *testing.T) {
			cfg := newConfig(t)
			b := newBackend(t, cfg)
			if err := b.Create(within(t, time.Minute), spec("vm-1")); err != nil {
				t.Fatal(err)
			}
			c.undo(t, cfg)
			m, err := b.Start(within(t, time.Minute), "vm-1", backend.StartOptions{})
			if err == nil {
				m.Stop(within(t, time.Minute), 0)
				t.Fatal("it was started")
			}
			if !fault.Is(err, fault.BackendCommandFailed) || !strings.Contains(err.Error(), c.says) || len(fault.From(err).NextSteps) == 0 {
				t.Errorf("%v", err)
			}
			if left := processes(t, cfg.LimaHome); len(left) > 0 {
				t.Errorf("it runs: %q", left)
			}
		})
	}
}

// TestOverrideAtCreation: what is wrong from the start is not made.
func TestOverrideAtCreation(t *testing.T) {
	c := newConfig(t)
	b := newBackend(t, c)
	dir := filepath.Join(c.LimaHome, "_config")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "override.yaml"), []byte(`{"mounts": [{"location": "~"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Create(within(t, time.Minute), spec("vm-1")); !fault.Is(err, fault.BackendCommandFailed) || !strings.Contains(err.Error(), "override.yaml") {
		t.Errorf("%v", err)
	}
	if all, err := b.List(within(t, time.Minute)); err != nil || len(all) > 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
}

// TestEnvironment: Lima's variables of the user's do not reach limactl, the rest
// does: QEMU_SYSTEM_X86_64 is how Lima's hypervisor is chosen.
func TestEnvironment(t *testing.T) {
	t.Setenv("LIMA_HOME", "/elsewhere")
	t.Setenv("LIMA_INSTANCE", "other")
	t.Setenv("QEMU_SYSTEM_X86_64", "wrapper")
	c := newConfig(t)
	b := newBackend(t, c)
	var home []string
	seen := map[string]bool{}
	for _, kv := range b.environ() {
		seen[kv] = true
		if strings.HasPrefix(kv, "LIMA_") {
			home = append(home, kv)
		}
	}
	if len(home) != 1 || home[0] != "LIMA_HOME="+c.LimaHome || !seen["QEMU_SYSTEM_X86_64=wrapper"] {
		t.Errorf("%q", home)
	}
}

func TestSpecsThatLimaCannotHonour(t *testing.T) {
	b := newBackend(t, newConfig(t))
	for what, c := range map[string]struct {
		change func(*backend.Spec)
		code   fault.Code
	}{
		"option as template":  {func(s *backend.Spec) { s.Template = "--set=.mounts=[1]" }, fault.InvalidArgument},
		"no template":         {func(s *backend.Spec) { s.Template = "" }, fault.InvalidArgument},
		"template with space": {func(s *backend.Spec) { s.Template = "a b" }, fault.InvalidArgument},
		"unknown template":    {func(s *backend.Spec) { s.Template = "template:nothing" }, fault.BackendCommandFailed},
		"option as VM type":   {func(s *backend.Spec) { s.VMType = "-x" }, fault.InvalidArgument},
		"unknown VM type":     {func(s *backend.Spec) { s.VMType = "vbox" }, fault.BackendCommandFailed},
		"name of no instance": {func(s *backend.Spec) { s.Name = "a--b" }, fault.InvalidArgument},
		"saved state":         {func(s *backend.Spec) { s.From = "/state" }, fault.UnsupportedByBackend},
	} {
		s := spec("vm-1")
		c.change(&s)
		if err := b.Create(within(t, time.Minute), s); !fault.Is(err, c.code) {
			t.Errorf("%s: %v, want %s", what, err, c.code)
		}
		if all, err := b.List(within(t, time.Minute)); err != nil || len(all) > 0 {
			t.Errorf("%s left %+v, %v", what, all, err)
		}
	}
}
