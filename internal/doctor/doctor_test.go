package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// probed is a backend that only answers probes.
type probed struct {
	backend.Backend
	name   string
	report backend.Report
	err    error
}

func (p probed) Name() string { return p.name }
func (p probed) Probe(context.Context, backend.Progress) (backend.Report, error) {
	return p.report, p.err
}

func usable(name, accel string) probed {
	return probed{name: name, report: backend.Report{Usable: true, Version: "9.9", Accelerator: accel, Evidence: []string{"tried " + accel}}}
}

func unusable(name string) probed {
	return probed{name: name, report: backend.Report{Problems: []backend.Problem{{
		What: name + " is not installed", Fatal: true,
		Fix: "sudo apt-get install " + name + ", or sudo dnf install " + name,
	}}}}
}

// good is a host on which everything works; tests break parts of it.
func good(t *testing.T) Options {
	dir := t.TempDir()
	s, err := config.LoadSettings(func(name string) string {
		return map[string]string{"HOME": dir, "SANDBOXFORGE_HOME": filepath.Join(dir, "home")}[name]
	}, "linux")
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Version: "test", Settings: s,
		Backends: []backend.Backend{usable("qemu", "tcg"), unusable("lima")},
		Images: func() ([]ImageState, error) {
			return []ImageState{{Name: "default", Built: true, Current: true, Default: true}}, nil
		},
		ImageBackend: "qemu",
		BuildTools:   func() error { return nil },
		Instances: func(context.Context) (*sandbox.ListInstancesResult, error) {
			return &sandbox.ListInstancesResult{Instances: []sandbox.Instance{{InstanceID: "inst_1", BackendInstanceName: "agent-1", Status: "running"}}}, nil
		},
		Host: Host{
			GOOS: "linux", GOARCH: "amd64",
			LookPath: func(p string) (string, error) {
				if p == "apt-get" {
					return "/usr/bin/apt-get", nil
				}
				return "", errors.New("not found")
			},
			CPUs:      func() int { return 4 },
			Memory:    func() (int64, error) { return 8 * gib, nil },
			DiskFree:  func(string) (int64, error) { return 100 * gib, nil },
			Processes: func(string) ([]Process, error) { return []Process{{1, "supervisor", "agent-1"}}, nil },
			Container: func() string { return "" },
		},
	}
}

func TestRun(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(*Options)
		ok     bool
		check  string // id
		status Status
		says   string // in the summary, a detail or a fix
		silent string // nowhere in the report
	}{
		"all is well":           {func(*Options) {}, true, "backend.qemu", OK, "accelerator tcg", ""},
		"evidence":              {func(*Options) {}, true, "backend.qemu", OK, "tried tcg", ""},
		"the other is a remark": {func(*Options) {}, true, "backend.lima", Warn, "apt-get install lima", "dnf"},
		"bad environment": {func(o *Options) {
			o.Settings, o.SettingsErr = nil, fault.New(fault.InvalidArgument, "MAX_INSTANCES is x")
		}, false, "environment", Fail, "MAX_INSTANCES", ""},
		"deprecated variable": {func(o *Options) { o.Settings.Warnings = []string{"LIMA_X is deprecated"} }, true, "environment", Warn, "LIMA_X", ""},
		"home not writable": {func(o *Options) {
			file := filepath.Join(filepath.Dir(o.Settings.Home), "file")
			os.WriteFile(file, nil, 0o600)
			o.Settings.Home = filepath.Join(file, "home")
		}, false, "home", Fail, "SANDBOXFORGE_HOME", "SANDBOX_BACKEND"},
		"accelerator of another system": {func(o *Options) {
			o.Settings.Accel, o.Backends = "hvf", []backend.Backend{unusable("lima")}
		}, false, "accelerator", Fail, "SANDBOX_ACCEL=hvf: not on linux\nunset SANDBOX_ACCEL, or set it to auto, kvm or tcg", "backend"},
		"accelerator that hyperv ignores": {func(o *Options) {
			o.Settings.Accel, o.Settings.Backend, o.Backends = "kvm", "hyperv", []backend.Backend{usable("hyperv", "")}
			o.Host.GOOS = "windows"
		}, true, "backend.hyperv", OK, "usable", "SANDBOX_ACCEL"},
		"operator's file": {func(o *Options) {
			o.Settings.ConfigHome = t.TempDir()
			file := filepath.Join(o.Settings.ConfigHome, "sandboxforge-mcp", "config.toml")
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte("[vm]\ncpu = 1\n"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}, false, "config", Fail, "vm.cpu: unknown key", ""},
		"no backend": {func(o *Options) { o.Backends = []backend.Backend{unusable("qemu"), unusable("lima")} }, false, "backend.qemu", Fail, "apt-get install qemu", "dnf"},
		"forced, and known not to work": {func(o *Options) {
			b := usable("qemu", "kvm")
			b.report.Problems = []backend.Problem{{What: "kvm is forced, and did not work", Fix: "unset SANDBOX_ACCEL", Doubtful: true}}
			o.Backends = []backend.Backend{b, usable("lima", "")}
		}, false, "backend.qemu", Fail, "kvm is forced, and did not work\ntried kvm\nunset SANDBOX_ACCEL", "A VM can be made"},
		"second best": {func(o *Options) { o.Backends = []backend.Backend{unusable("qemu"), usable("lima", "")} }, true, "backend.qemu", Warn, "apt-get", ""},
		"second best needs no image": {func(o *Options) {
			o.Backends = []backend.Backend{unusable("qemu"), usable("lima", "")}
			o.Images = func() ([]ImageState, error) { return []ImageState{{Name: "default", Default: true}}, nil }
		}, true, "image", Info, "has not been built", ""},
		"asked for the one that is not there": {func(o *Options) { o.Settings.Backend = "lima" }, false, "backend.lima", Fail, "apt-get install lima", ""},
		"others are not looked at":            {func(o *Options) { o.Settings.Backend = "lima" }, false, "backend.qemu", Info, "SANDBOX_BACKEND=lima", ""},
		"asked for none of this platform":     {func(o *Options) { o.Settings.Backend = "hyperv" }, false, "backend.hyperv", Fail, "auto", ""},
		"probe fails": {func(o *Options) {
			o.Backends = []backend.Backend{probed{name: "qemu", err: fault.New(fault.Internal, "boom").Next("do this")}}
		}, false, "backend.qemu", Fail, "do this", ""},
		"no image": {func(o *Options) {
			o.Images = func() ([]ImageState, error) { return []ImageState{{Name: "default", Default: true}}, nil }
			o.Backends = []backend.Backend{probed{name: "qemu", report: backend.Report{Usable: true, Problems: []backend.Problem{{What: "image", Fix: "run `sandboxforge image build default`"}}}}}
		}, false, "image", Fail, "sandboxforge image build", "image build default"},
		"images of somebody else": {func(o *Options) {
			o.Images = func() ([]ImageState, error) {
				return nil, fault.Wrap(fs.ErrPermission, fault.Internal, "cannot read the image directory").Next("make it yours")
			}
		}, false, "image", Fail, "make it yours", ""},
		"old image": {func(o *Options) {
			o.Images = func() ([]ImageState, error) { return []ImageState{{Name: "default", Built: true, Default: true}}, nil }
		}, true, "image", Warn, "another version", ""},
		"no image and no tools": {func(o *Options) {
			o.Images = func() ([]ImageState, error) { return []ImageState{{Name: "default", Default: true}}, nil }
			o.BuildTools = func() error {
				return fault.New(fault.BackendUnavailable, "missing mmdebstrap").
					Next("Debian, Ubuntu: sudo apt-get install mmdebstrap").Next("Fedora: sudo dnf install mmdebstrap")
			}
		}, false, "image.tools", Fail, "sudo apt-get install mmdebstrap", "Fedora"},
		"little memory":  {func(o *Options) { o.Host.Memory = func() (int64, error) { return 2 * gib, nil } }, true, "memory", Warn, "vm.memory_gib = 1.5", ""},
		"no memory":      {func(o *Options) { o.Host.Memory = func() (int64, error) { return gib / 2, nil } }, false, "memory", Fail, "512.0 MiB", ""},
		"little disk":    {func(o *Options) { o.Host.DiskFree = func(string) (int64, error) { return 10 * gib, nil } }, true, "disk", Warn, "vm.disk_gib = 8 ", ""},
		"no disk":        {func(o *Options) { o.Host.DiskFree = func(string) (int64, error) { return gib, nil } }, false, "disk", Fail, "SANDBOXFORGE_HOME", ""},
		"in a container": {func(o *Options) { o.Host.Container = func() string { return "Docker" } }, true, "container", Warn, "not supported", ""},
		"broken database": {func(o *Options) {
			o.Instances = func(context.Context) (*sandbox.ListInstancesResult, error) {
				return nil, fault.New(fault.Internal, "newer schema").Next("use the newer program")
			}
		}, false, "instances", Fail, "use the newer program", ""},
		"more than here is allowed": {func(o *Options) {
			o.Settings.MaxInstances = 1
			o.Host.Processes = nil
			o.Instances = func(context.Context) (*sandbox.ListInstancesResult, error) {
				return &sandbox.ListInstancesResult{Instances: []sandbox.Instance{{Kind: "instance"}, {Kind: "instance"}, {Kind: "pool"}}}, nil
			}
		}, true, "instances", OK, "2; MAX_INSTANCES is 1 here, and more for the server that made them, and 1 VMs of SandboxForge's own", "at most"},
		"leftover": {func(o *Options) {
			o.Host.Processes = func(string) ([]Process, error) {
				return []Process{{1, "supervisor", "agent-1"}, {77, "hypervisor", "agent-2"}}, nil
			}
		}, true, "leftovers", Warn, "hypervisor of agent-2, process 77", "agent-1"},
	} {
		t.Run(name, func(t *testing.T) {
			o := good(t)
			c.spoil(&o)
			r := Run(t.Context(), o)
			var b strings.Builder
			if err := r.WriteText(&b); err != nil {
				t.Fatal(err)
			}
			if r.OK != c.ok {
				t.Errorf("OK is %v, want %v\n%s", r.OK, c.ok, b.String())
			}
			check := r.Find(c.check)
			if check == nil {
				t.Fatalf("no check %s in\n%s", c.check, b.String())
			}
			all := strings.Join(append(append([]string{check.Summary}, check.Details...), check.Fix...), "\n")
			if check.Status != c.status || !strings.Contains(all+" ", c.says) {
				t.Errorf("%s is %s: %s\nwant %s and %q", c.check, check.Status, all, c.status, c.says)
			}
			if c.silent != "" && strings.Contains(b.String(), c.silent) {
				t.Errorf("%q should not be said:\n%s", c.silent, b.String())
			}
			if !r.OK && !strings.Contains(b.String(), "What to do:\n  1. ") {
				t.Errorf("no way out is shown:\n%s", b.String())
			}
		})
	}
}

// Without a state directory one thing has to be mended, and that is all that is
// said, even where it is why there is no backend to ask.
func TestAHomeThatCannotBeMadeIsTheOneFailure(t *testing.T) {
	o := good(t)
	file := filepath.Join(filepath.Dir(o.Settings.Home), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o.Settings.Home = filepath.Join(file, "home")
	o.Backends = nil
	o.Images = func() ([]ImageState, error) { return []ImageState{{Name: "default", Default: true}}, nil }
	r := Run(t.Context(), o)
	failed := 0
	for _, c := range r.Checks {
		if c.Status == Fail {
			failed++
		}
	}
	if failed != 1 || r.OK || r.Find("home").Status != Fail {
		t.Errorf("%+v", r.Checks)
	}
	for _, id := range []string{"disk", "backend"} {
		if c := r.Find(id); c == nil || c.Status != Info || !strings.Contains(c.Summary, "needs the state directory") {
			t.Errorf("%s: %+v", id, c)
		}
	}
}

func TestFixesAreForThisHost(t *testing.T) {
	both := []string{"Debian, Ubuntu: sudo apt-get install x", "Fedora: sudo dnf install x", "Arch: sudo pacman -S x", "or do without"}
	for name, c := range map[string]struct {
		has  string
		root bool
		in   []string
		want []string
	}{
		"apt":        {"apt-get", false, both, []string{"sudo apt-get install x", "or do without"}},
		"dnf":        {"dnf", false, both, []string{"sudo dnf install x", "or do without"}},
		"pacman":     {"pacman", true, both, []string{"pacman -S x", "or do without"}},
		"unknown":    {"", false, both, both},
		"one line":   {"dnf", false, []string{"sudo apt-get install x, or sudo dnf install x, or sudo pacman -S x"}, []string{"sudo dnf install x"}},
		"no package": {"apt-get", false, []string{"load the module: sudo modprobe kvm"}, []string{"load the module: sudo modprobe kvm"}},
		"twice":      {"apt-get", false, []string{"sudo apt-get install x", "sudo apt-get install x"}, []string{"sudo apt-get install x"}},
	} {
		h := Host{Root: c.root, LookPath: func(p string) (string, error) {
			if p == c.has {
				return p, nil
			}
			return "", errors.New("no")
		}}
		if got := h.fixes(c.in); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// The distribution decides, not what else is on the PATH, and what is missing is
// one command.
func TestFixesAreOneCommandOfThisDistribution(t *testing.T) {
	missing := []string{
		"sudo apt-get install -y --no-install-recommends qemu-system-x86, or sudo dnf install -y qemu-system-x86-core, or sudo pacman -S --needed qemu-system-x86",
		"sudo apt-get install -y --no-install-recommends qemu-utils, or sudo dnf install -y qemu-img, or sudo pacman -S --needed qemu-img",
		"do something else",
	}
	for release, want := range map[string][]string{
		"NAME=Mint\nID=linuxmint\nID_LIKE=\"ubuntu debian\"\n": {"sudo apt-get install -y --no-install-recommends qemu-system-x86 qemu-utils", "do something else"},
		"ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n":       {"sudo dnf install -y qemu-system-x86-core qemu-img", "do something else"},
		"ID=arch\n": {"sudo pacman -S --needed qemu-system-x86 qemu-img", "do something else"},
		"ID=plan9\n": {"sudo apt-get install -y --no-install-recommends qemu-system-x86 qemu-utils", "sudo dnf install -y qemu-system-x86-core qemu-img",
			"sudo pacman -S --needed qemu-system-x86 qemu-img", "do something else"},
	} {
		h := Host{Distribution: func() []string { return distribution(release) }, LookPath: func(p string) (string, error) {
			if strings.Contains(release, "ID=arch") && p != "dnf" {
				return p, nil // apt-get too, for containers of another distribution
			}
			return "", errors.New("no")
		}}
		if got := h.fixes(missing); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", release, got, want)
		}
	}
}

func TestProcessOf(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want Process
		ok   bool
	}{
		"supervisor": {[]string{"/bin/sandboxforge", "__supervise", "/h/vms/agent-1a2b3c4d"}, Process{9, "supervisor", "agent-1a2b3c4d"}, true},
		"hypervisor": {[]string{"/usr/bin/qemu-system-x86_64", "-drive", "file=/h/vms/agent-ff/disk.qcow2,if=none"}, Process{9, "hypervisor", "agent-ff"}, true},
		"editor":     {[]string{"vi", "/h/vms/agent-ff/console.log"}, Process{9, "other", "agent-ff"}, true},
		"elsewhere":  {[]string{"qemu-system-x86_64", "-drive", "file=/other/vms/agent-ff/disk"}, Process{}, false},
		"the home":   {[]string{"ls", "/h/vms/"}, Process{}, false},
		"nothing":    {nil, Process{}, false},
	} {
		got, ok := processOf(9, c.args, "/h/vms")
		if got != c.want || ok != c.ok {
			t.Errorf("%s: %+v %v, want %+v %v", name, got, ok, c.want, c.ok)
		}
	}
}
