package hyperv

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/backend/hyperv/powershell"
	"sandboxforge/internal/backend/hyperv/standin"
)

func (l *lab) reach(t *testing.T, m backend.Machine) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stream, err := m.DialAgent(ctx)
	ok(t, err)
	defer stream.Close()
	b := make([]byte, 200)
	n, err := stream.Read(b)
	ok(t, err)
	return string(b[:n])
}

// TestGuestIsFound by what the integration service says, by the neighbour table,
// and past hosts that only look like it.
func TestGuestIsFound(t *testing.T) {
	for name, faults := range map[string]standin.Faults{
		"integration service":     {NoNeighbors: true},
		"neighbour table":         {NoKVP: true},
		"address comes late":      {AddressDelay: 200 * time.Millisecond},
		"late, and no service":    {AddressDelay: 200 * time.Millisecond, NoKVP: true},
		"the machine starts long": {StartTime: 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.update(t, func(w *standin.World) { w.Faults = faults })
			l.create(t, "vm-1")
			v := l.create(t, "vm-2")
			other, m := l.start(t, "vm-1"), l.start(t, "vm-2")
			l.reach(t, other)
			// The table says that vm-1's address is vm-2's too, and has one
			// where nobody is.
			first := l.vm(t, "vm-1").Address
			l.update(t, func(w *standin.World) {
				mac := dashes(v.MAC)
				w.Neighbors = []standin.Neighbor{{Address: "172.28.9.9", MAC: mac, State: "Unreachable"}, {Address: first, MAC: mac, State: "Reachable"}, {Address: "172.28.9.8", MAC: mac, State: "Reachable"}}
			})
			if got := l.reach(t, m); !strings.HasPrefix(got, "vm-2-") {
				t.Errorf("reached %q", got)
			}
			if text := string(m.Console(4096)); !strings.Contains(text, "was reached") {
				t.Errorf("the console says %q", text)
			}
		})
	}
}

// TestAddressIsAskedForEachTime: the subnet of the switch changed, as it does
// when Windows restarts.
func TestAddressIsAskedForEachTime(t *testing.T) {
	l := newLab(t)
	v := l.create(t, "vm-1")
	m := l.start(t, "vm-1")
	before := l.reach(t, m)
	l.update(t, func(w *standin.World) { w.Find(string(v.ID)).Address = "192.168.77.5" })
	if after := l.reach(t, m); after != before {
		t.Errorf("reached %q, before %q", after, before)
	}
}

func TestGuestThatIsNeverFound(t *testing.T) {
	l := newLab(t)
	l.c.BootTimeout = 200 * time.Millisecond
	l.reopen(t)
	l.update(t, func(w *standin.World) { w.Faults = standin.Faults{NoKVP: true, NoNeighbors: true} })
	l.create(t, "vm-1")
	m := l.start(t, "vm-1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dialed := make(chan error, 1)
	go func() {
		_, err := m.DialAgent(ctx)
		dialed <- err
	}()
	err := m.(backend.BootWatcher).WatchBoot(t.Context())
	if !errors.Is(err, backend.ErrBootFailed) {
		t.Fatalf("WatchBoot: %v", err)
	}
	if text := string(m.Console(4096)); !strings.Contains(text, "no address yet") || !strings.Contains(text, "CmdletizationQuery_NotFound") {
		t.Errorf("the console says %q", text)
	}
	cancel()
	if err := <-dialed; !errors.Is(err, context.Canceled) {
		t.Errorf("DialAgent: %v", err)
	}
	// With the template for Windows' boot loader no Linux comes up.
	over, stop := context.WithCancel(t.Context())
	stop()
	if err := m.(backend.BootWatcher).WatchBoot(over); err != nil {
		t.Errorf("WatchBoot of a caller that left: %v", err)
	}
}

func TestSecureBootUsesTheTemplateForOthers(t *testing.T) {
	l := newLab(t)
	l.c.SecureBoot = true
	l.reopen(t)
	if v := l.create(t, "vm-1"); v.SecureBoot != "On" || v.SecureBootTemplate != "MicrosoftUEFICertificateAuthority" {
		t.Errorf("the machine is %+v", v)
	}
	l.reach(t, l.start(t, "vm-1"))
}

func TestProbeNamesWhatIsMissing(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*standin.World)
		what   string
		fix    string
	}{
		"home edition": {func(w *standin.World) {
			w.Edition, w.SKU = "Microsoft Windows 11 Home", 101
			w.Faults.ModuleMissing, w.Faults.VmmsMissing = true, true
		}, "no Hyper-V", "WSL2"},
		"no module":       {func(w *standin.World) { w.Faults.ModuleMissing, w.Faults.VmmsMissing = true, true }, "module", "Enable-WindowsOptionalFeature"},
		"tools alone":     {func(w *standin.World) { w.Faults.VmmsMissing = true }, "only its tools", "Enable-WindowsOptionalFeature"},
		"service stopped": {func(w *standin.World) { w.Faults.VmmsStopped = true }, "vmms", "Start-Service vmms"},
		"no hypervisor":   {func(w *standin.World) { w.Faults.NoHypervisor = true }, "hypervisor", "bcdedit"},
		"no rights":       {func(w *standin.World) { w.Faults.Rights = "none" }, "may not use Hyper-V", "S-1-5-32-578"},
		"no switch":       {func(w *standin.World) { w.Switches = nil }, `"Default Switch"`, "New-VMSwitch"},
		"language mode":   {func(w *standin.World) { w.Faults.LanguageMode = "ConstrainedLanguage" }, "ConstrainedLanguage", "policy"},
		"PowerShell dies": {func(w *standin.World) { w.Faults.Die = []string{"Get-CimInstance"} }, "", ""},
		"restricted":      {func(w *standin.World) { w.Faults.LanguageMode = "RestrictedLanguage" }, "RestrictedLanguage", "policy"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.update(t, c.change)
			r, err := l.b.Probe(t.Context(), nil)
			ok(t, err)
			if r.Usable || len(r.Problems) != 1 {
				t.Fatalf("the probe says %+v", r)
			}
			if p := r.Problems[0]; !p.Fatal || p.Fix == "" || !strings.Contains(p.What, c.what) || !strings.Contains(p.Fix, c.fix) {
				t.Errorf("the problem is %+v", p)
			}
		})
	}
}

func TestConfigIsRefused(t *testing.T) {
	for what, change := range map[string]func(*Config){
		"no PowerShell":      func(c *Config) { c.PowerShell = "" },
		"relative storage":   func(c *Config) { c.StorageDir = "vms" },
		"storage on a share": func(c *Config) { c.StorageDir = `\\server\share` },
		"base on a share":    func(c *Config) { c.BaseVHDX = `\\server\share\base.vhdx` },
	} {
		c := Config{StorageDir: t.TempDir(), PowerShell: "/bin/true"}
		change(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: taken", what)
		}
	}
}

func TestCandidates(t *testing.T) {
	var a addresses
	ok(t, json.Unmarshal([]byte(`{"state":"Running","service":["fe80::1","169.254.3.4","172.20.1.2","not an address","127.0.0.1","0.0.0.0","224.0.0.1"],
		"neighbors":[{"address":"172.20.1.9","state":"Stale"},{"address":"172.20.1.8","state":"Reachable"},{"address":"172.20.1.2","state":"Permanent"},{"address":"172.20.1.7","state":"Unreachable"}]}`), &a))
	var got []string
	for _, ip := range a.candidates() {
		got = append(got, ip.String())
	}
	if want := []string{"172.20.1.2", "172.20.1.8", "172.20.1.9"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// FuzzResults: what scripts output may be anything.
func FuzzResults(f *testing.F) {
	for _, s := range []string{
		`{"vms":[{"id":"x","name":"n","notes":"{\"sandboxforge\":1}","state":"Off","uptime":1,"disks":"one"}],"rights":true,"vmms":"Running"}`,
		`{"vms":{"value":[],"Count":0},"rights":false,"vmms":"Stopped"}`, `{"id":"","disks":["a"]}`, `{"service":"1.2.3.4","neighbors":null}`,
		`{"modules":["2.0.0.0","1.1","x"],"switches":{"id":"1","name":"n","type":"t"}}`, `null`, `[]`,
	} {
		f.Add(s)
	}
	b := &Backend{c: Config{StorageDir: f.TempDir(), SwitchName: "s"}}
	r := newRecord(backend.Spec{Name: "vm-1"})
	f.Fuzz(func(t *testing.T, text string) {
		var list machineList
		if json.Unmarshal([]byte(text), &list) == nil {
			list.believable()
			for _, m := range list.VMs {
				if mark, isOurs := parseMarker(m.Notes); isOurs && backend.CheckName(mark.Name) != nil {
					t.Fatalf("a marker with the name %q", mark.Name)
				}
				if info := b.describe(r, m, true); info.State == "" {
					t.Fatal("no state")
				}
			}
		}
		parseMarker(text)
		var a addresses
		if json.Unmarshal([]byte(text), &a) == nil {
			for _, ip := range a.candidates() {
				if !ip.Is4() || ip.IsLoopback() || ip.IsLinkLocalUnicast() {
					t.Fatalf("the candidate %s", ip)
				}
			}
		}
		var h hostInfo
		if json.Unmarshal([]byte(text), &h) == nil {
			h.module()
			h.switchNames()
		}
		var m madeMachine
		if json.Unmarshal([]byte(text), &m) == nil && m.check(b, r) == nil {
			t.Fatal("a machine out of nothing")
		}
		explain("x", &powershell.Error{ID: text, Message: text})
	})
}
