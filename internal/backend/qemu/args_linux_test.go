package qemu

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func example() machine {
	return machine{
		name: "agent-0a1b2c3d", arch: "amd64", typ: "pc-q35-7.2", accel: accelerator{name: "tcg"}, cpus: 2,
		memory: memory{mib: 2048}, kernel: "/i/kernel", initrd: "/i/initrd", cmdline: "console=ttyS0 root=/dev/vda quiet",
		disk: `/vms/a,b "c"/disk.qcow2`, network: true, agent: true, monitor: true, sandbox: true,
	}
}

// The golden files show the whole command line, one option a line: whoever
// changes the machine sees what it changes, and that saved states stop to load.
func TestArguments(t *testing.T) {
	for name, change := range map[string]func(*machine){
		"amd64-tcg":      func(*machine) {},
		"amd64-kvm":      func(m *machine) { m.accel.name = "kvm" },
		"amd64-cautious": func(m *machine) { m.accel.singleThread = true },
		"amd64-template": func(m *machine) { m.memory.file, m.memory.share = "/t/ram,1", true },
		"amd64-clone":    func(m *machine) { m.memory.file, m.load = "/t/memory", true },
		"amd64-trial": func(m *machine) {
			*m = machine{name: "accelerator-trial", arch: m.arch, typ: m.typ, accel: accelerator{name: "kvm"}, cpus: 1,
				memory: memory{mib: 512}, kernel: m.kernel, initrd: m.initrd, cmdline: loudCmdline(m.cmdline)}
		},
		// Not run anywhere yet: no arm64 host was at hand.
		"arm64-kvm": func(m *machine) { m.arch, m.typ, m.accel.name = "arm64", "virt-7.2", "kvm" },
		"arm64-tcg": func(m *machine) { m.arch, m.typ = "arm64", "virt-7.2" },
	} {
		t.Run(name, func(t *testing.T) {
			m := example()
			change(&m)
			var got strings.Builder
			for _, a := range m.args() {
				if strings.HasPrefix(a, "-") && got.Len() > 0 {
					got.WriteByte('\n')
				} else if got.Len() > 0 {
					got.WriteByte(' ')
				}
				got.WriteString(a)
			}
			got.WriteByte('\n')
			file := filepath.Join("testdata", name+".args")
			if *update {
				if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got.String()); d != "" {
				t.Error(d)
			}
		})
	}
}

// QEMU itself reads the arm64 line, if it is here.
func TestArm64ArgumentsAreUnderstood(t *testing.T) {
	bin, err := exec.LookPath(binaryName("arm64"))
	if err != nil {
		t.Skip("no qemu-system-aarch64")
	}
	b, _ := newBackend(t)
	typ, err := b.machineType(t.Context(), bin, "arm64")
	if err != nil {
		t.Fatal(err)
	}
	m := machine{name: "x", arch: "arm64", typ: typ, accel: accelerator{name: "tcg"}, cpus: 2, memory: memory{mib: 256}, kernel: "/dev/null"}
	log := newTailLog()
	r, err := launch(bin, m, t.TempDir(), nil, log)
	if err != nil {
		t.Fatal(err)
	}
	r.end()
	if out := log.text(); strings.Contains(out, "nvalid") || strings.Contains(out, "not found") {
		t.Error(out)
	}
}

func TestLoudCmdline(t *testing.T) {
	if got, want := loudCmdline("console=ttyS0 quiet loglevel=3 root=/dev/vda"), "console=ttyS0 root=/dev/vda ignore_loglevel panic=-1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
