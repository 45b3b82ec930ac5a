package hyperv

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/backend/hyperv/standin"
	"sandboxforge/internal/fault"
)

func (l *lab) create(t *testing.T, name string) *standin.VM {
	t.Helper()
	ok(t, l.b.Create(t.Context(), spec(name)))
	return l.vm(t, name)
}

// vm is the machine of a VM in the world.
func (l *lab) vm(t *testing.T, name string) *standin.VM {
	t.Helper()
	r, err := l.b.readRecord(name)
	ok(t, err)
	v := l.look(t).Find(r.ID)
	if v == nil {
		t.Fatalf("no machine of %s", name)
	}
	return v
}

func (l *lab) start(t *testing.T, name string) backend.Machine {
	t.Helper()
	m, err := l.b.Start(t.Context(), name, backend.StartOptions{})
	ok(t, err)
	t.Cleanup(func() { m.Stop(context.Background(), 0) })
	return m
}

func (l *lab) state(t *testing.T, name string) backend.Info {
	t.Helper()
	info, err := l.b.Inspect(t.Context(), name)
	ok(t, err)
	return info
}

func wantFault(t *testing.T, err error, code fault.Code, words ...string) {
	t.Helper()
	f := fault.From(err)
	if f == nil || f.Code != code {
		t.Fatalf("got %v, want %s", err, code)
	}
	text := f.Message + " " + f.Cause + " " + strings.Join(f.NextSteps, " ")
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q does not say %q", text, w)
		}
	}
	if len(f.NextSteps) == 0 {
		t.Errorf("no remedy: %v", err)
	}
}

func ended(t *testing.T, m backend.Machine) backend.Exit {
	t.Helper()
	select {
	case <-m.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the end was not seen")
	}
	return m.Exit()
}

func TestCreateMakesWhatWasAsked(t *testing.T) {
	l := newLab(t)
	v := l.create(t, "vm-1")
	first := v.MAC[:2]
	if v.Generation != 2 || v.Processors != 2 || v.Memory != 1<<30 || v.DynamicMemory || v.AutomaticCheckpoints || v.CheckpointType != "Disabled" ||
		v.StartAction != "Nothing" || v.StopAction != "TurnOff" || v.SecureBoot != "Off" || v.Switch != "Default Switch" || !v.StaticMAC || first != "02" {
		t.Errorf("the machine is %+v", v)
	}
	dir := filepath.Join(l.c.StorageDir, "vm-1")
	if len(v.Disks) != 1 || v.Disks[0].Path != filepath.Join(dir, diskFile) || v.Disks[0].Controller != "SCSI" || v.FirstBoot != v.Disks[0].Path || len(v.DVDs) != 1 {
		t.Errorf("its drives are %+v, %+v, first %s", v.Disks, v.DVDs, v.FirstBoot)
	}
	d, err := standin.ReadDisk(v.Disks[0].Path)
	if err != nil || d.Parent != l.c.BaseVHDX || d.Size != 8<<30 {
		t.Errorf("its disk is %+v, %v", d, err)
	}
	m, isOurs := l.b.ours(machineInfo{Notes: v.Notes})
	if !isOurs || m.Name != "vm-1" {
		t.Errorf("its notes are %q", v.Notes)
	}
	s, err := readSeed(v.DVDs[0].Path)
	ok(t, err)
	net := s.Network.Ethernets["eth0"]
	if s.Meta.Hostname != "vm-1" || s.Meta.Instance != m.Token || !s.User.DeleteKeys || len(s.User.Users) != 1 || s.User.Users[0].Name != "ubuntu" ||
		!strings.EqualFold(strings.ReplaceAll(net.Match["macaddress"], ":", ""), v.MAC) || !net.DHCP || net.Identifier != "mac" {
		t.Errorf("the seed is %+v", s)
	}
	if st, err := os.Stat(v.DVDs[0].Path); err != nil || st.Size()%2048 != 0 {
		t.Errorf("the ISO has %d bytes, %v", st.Size(), err)
	}
	// A disk that is asked for smaller than the base is as large as the base.
	small := spec("vm-2")
	small.DiskBytes = 1 << 20
	ok(t, l.b.Create(t.Context(), small))
	if d, err := standin.ReadDisk(l.vm(t, "vm-2").Disks[0].Path); err != nil || d.Size != baseSize {
		t.Errorf("a small disk is %+v, %v", d, err)
	}
}

// TestForeignMachinesAreLeftAlone: the same name, a name that is a pattern, a
// marker of another store, and notes that look like ours.
func TestForeignMachinesAreLeftAlone(t *testing.T) {
	l := newLab(t)
	store, err := l.b.storeID()
	ok(t, err)
	foreign := []*standin.VM{
		{ID: "aaaaaaaa-0000-4000-8000-000000000001", Name: "vm-1", State: "Running"},
		{ID: "aaaaaaaa-0000-4000-8000-000000000002", Name: "*", State: "Off"},
		{ID: "aaaaaaaa-0000-4000-8000-000000000003", Name: "vm-1", State: "Off", Notes: `{"sandboxforge":1,"store":"0123456789abcdef0123456789abcdef","name":"vm-1","token":"t"}`},
		{ID: "aaaaaaaa-0000-4000-8000-000000000004", Name: "x", State: "Saved", Notes: "I keep " + store + " in mind"},
		{ID: "aaaaaaaa-0000-4000-8000-000000000005", Name: "y", State: "Off", Notes: `{"sandboxforge":1,"store":"` + store + `","name":"../vm-1","token":"t"}`},
		{ID: "aaaaaaaa-0000-4000-8000-000000000006", Name: "z", State: "RunningCritical", Notes: `{"sandboxforge":2,"store":"` + store + `","name":"vm-1","token":"t"}`},
	}
	l.update(t, func(w *standin.World) { w.VMs = append(w.VMs, foreign...) })
	l.create(t, "vm-1")
	m := l.start(t, "vm-1")
	all, err := l.b.List(t.Context())
	ok(t, err)
	if len(all) != 1 || all[0].Name != "vm-1" {
		t.Errorf("List shows %+v", all)
	}
	ok(t, l.b.Delete(t.Context(), "vm-1"))
	ended(t, m)
	ok(t, l.b.Delete(t.Context(), "vm-1"))
	if diff := gocmp.Diff(foreign, l.look(t).VMs); diff != "" {
		t.Errorf("foreign machines changed: %s", diff)
	}
}

func TestTwoStoresOnOneHost(t *testing.T) {
	l := newLab(t)
	other := *l
	other.c.StorageDir = filepath.Join(t.TempDir(), "vms")
	ok(t, os.Mkdir(other.c.StorageDir, 0o700))
	other.reopen(t)
	mine, theirs := l.create(t, "vm-1"), other.create(t, "vm-1")
	if mine.ID == theirs.ID {
		t.Fatal("one machine for both")
	}
	ok(t, l.b.Delete(t.Context(), "vm-1"))
	if info := other.state(t, "vm-1"); info.State != backend.Stopped {
		t.Errorf("the other store's VM is %+v", info)
	}
}

// TestNothingIsBelievedWithoutRights: a list can then be empty, and no error.
func TestNothingIsBelievedWithoutRights(t *testing.T) {
	l := newLab(t)
	l.create(t, "vm-1")
	m := l.start(t, "vm-1")
	for what, change := range map[string]func(*standin.Faults){
		"nothing is seen":    func(f *standin.Faults) { f.Rights = "none" },
		"an error":           func(f *standin.Faults) { f.Rights = "none-error" },
		"vmms does not run":  func(f *standin.Faults) { f.VmmsStopped = true },
		"no module any more": func(f *standin.Faults) { f.ModuleMissing = true },
	} {
		l.update(t, func(w *standin.World) { change(&w.Faults) })
		if all, err := l.b.List(t.Context()); err == nil {
			t.Errorf("%s: List is %+v", what, all)
		}
		_, err := l.b.Inspect(t.Context(), "vm-1")
		if err == nil || errors.Is(err, backend.ErrNotFound) {
			t.Errorf("%s: Inspect: %v", what, err)
		}
		if what == "vmms does not run" {
			wantFault(t, err, fault.BackendUnavailable, "Start-Service vmms")
		}
		if _, err := l.b.Inspect(t.Context(), "vm-2"); err == nil || errors.Is(err, backend.ErrNotFound) {
			t.Errorf("%s: Inspect of another: %v", what, err)
		}
		if err := l.b.Delete(t.Context(), "vm-1"); err == nil {
			t.Errorf("%s: Delete succeeded", what)
		}
		l.update(t, func(w *standin.World) { w.Faults = standin.Faults{} })
	}
	select {
	case <-m.Done():
		t.Fatalf("the VM ended: %+v", m.Exit())
	default:
	}
	if info := l.state(t, "vm-1"); info.State != backend.Running {
		t.Errorf("the VM is %+v", info)
	}
}

func TestMemberOfHyperVAdministratorsIsEnough(t *testing.T) {
	l := newLab(t)
	l.update(t, func(w *standin.World) { w.Faults.Rights = "hyper-v" })
	l.create(t, "vm-1")
	l.start(t, "vm-1")
	ok(t, l.b.Delete(t.Context(), "vm-1"))
}

// TestOtherLanguagesAndNoise: nothing depends on messages or on quiet.
func TestOtherLanguagesAndNoise(t *testing.T) {
	l := newLab(t)
	l.update(t, func(w *standin.World) {
		w.Faults = standin.Faults{Localized: true, Noise: true, NoKVP: true, StartTime: 50 * time.Millisecond, StopTime: 50 * time.Millisecond}
	})
	l.create(t, "vm-1")
	m := l.start(t, "vm-1")
	stream, err := m.DialAgent(t.Context())
	ok(t, err)
	stream.Close()
	ok(t, l.b.Delete(t.Context(), "vm-1"))
	if e := ended(t, m); e.Reason != backend.ExitStopped {
		t.Errorf("exit %+v", e)
	}
	if n := len(l.look(t).VMs); n != 0 {
		t.Errorf("%d machines are left", n)
	}
}

func TestNotEnoughMemory(t *testing.T) {
	l := newLab(t)
	l.create(t, "vm-1")
	l.update(t, func(w *standin.World) { w.MemoryMiB = 512; w.Faults.Localized = true })
	_, err := l.b.Start(t.Context(), "vm-1", backend.StartOptions{})
	wantFault(t, err, fault.InsufficientHostResources, "memory")
	if info := l.state(t, "vm-1"); info.State != backend.Stopped {
		t.Errorf("after the failure it is %+v", info)
	}
	l.update(t, func(w *standin.World) { w.MemoryMiB = 4096 })
	l.start(t, "vm-1")
}

func TestBaseWasReplaced(t *testing.T) {
	l := newLab(t)
	l.create(t, "vm-1")
	ok(t, os.Remove(l.c.BaseVHDX))
	ok(t, standin.MakeDisk(l.c.BaseVHDX, baseSize))
	_, err := l.b.Start(t.Context(), "vm-1", backend.StartOptions{})
	wantFault(t, err, fault.BackendCommandFailed, "base disk", "replaced")
	ok(t, l.b.Delete(t.Context(), "vm-1"))
}

// TestFailedCreateLeavesNothing, at whichever cmdlet it fails, by an error, by a
// process that dies behind it, or by one that hangs.
func TestFailedCreateLeavesNothing(t *testing.T) {
	l := newLab(t)
	l.b.changeLimit, l.b.lateWait = 700*time.Millisecond, 100*time.Millisecond
	for _, cmdlet := range []string{
		"Get-VHD", "New-VHD", "New-VM", "Set-VM", "Add-VMHardDiskDrive", "Add-VMDvdDrive", "Set-VMFirmware", "Set-VMNetworkAdapter", "Connect-VMNetworkAdapter",
	} {
		for how, order := range map[string]func(*standin.Faults){
			"fails": func(f *standin.Faults) {
				f.Errors = map[string]standin.OrderedError{cmdlet: {ID: "OperationFailed", Category: "NotSpecified", HResult: 0x80004005, Once: true}}
			},
			"dies":  func(f *standin.Faults) { f.Die = []string{cmdlet} },
			"hangs": func(f *standin.Faults) { f.Hang = []string{cmdlet} },
		} {
			if cmdlet == "Get-VHD" && how == "hangs" {
				continue // a query, with a longer limit
			}
			l.update(t, func(w *standin.World) { order(&w.Faults) })
			err := l.b.Create(t.Context(), spec("vm-1"))
			if err == nil {
				t.Fatalf("%s %s, and Create succeeded", cmdlet, how)
			}
			if want := map[string]fault.Code{"fails": fault.BackendCommandFailed}[how]; fault.CodeOf(err) != cmp.Or(want, fault.OutcomeUnknown) {
				t.Errorf("%s %s: %s, %v", cmdlet, how, fault.CodeOf(err), err)
			}
			if all, err := l.b.List(t.Context()); err != nil || len(all) != 0 {
				t.Errorf("%s %s: List is %+v, %v", cmdlet, how, all, err)
			}
			if n := len(l.look(t).VMs); n != 0 {
				t.Errorf("%s %s: %d machines are left", cmdlet, how, n)
			}
			if _, err := os.Lstat(l.b.dir("vm-1")); err == nil {
				t.Errorf("%s %s: the directory is left", cmdlet, how)
			}
		}
	}
	l.create(t, "vm-1")
}

func TestDiskInUseIsTriedAgain(t *testing.T) {
	l := newLab(t)
	l.update(t, func(w *standin.World) {
		w.Faults.Errors = map[string]standin.OrderedError{"New-VHD": {ID: "OperationFailed", Category: "NotSpecified", HResult: codeSharing, Once: true}}
	})
	l.create(t, "vm-1")
}

func TestSwitchIsMissing(t *testing.T) {
	l := newLab(t)
	l.c.SwitchName = "lab"
	l.reopen(t)
	wantFault(t, l.b.Create(t.Context(), spec("vm-1")), fault.BackendUnavailable, `no virtual switch "lab"`, `"Default Switch"`)
}

func TestBaseIsRefused(t *testing.T) {
	l := newLab(t)
	dir := t.TempDir()
	file := func(name string, data string) string {
		path := filepath.Join(dir, name)
		ok(t, os.WriteFile(path, []byte(data), 0o600))
		return path
	}
	for path, words := range map[string]string{
		"":                              "not set",
		"relative.vhdx":                 "not absolute",
		filepath.Join(dir, "none.vhdx"): "no such file",
		file("old.vhd", "x"):            ".vhdx",
		file("b_1.avhdx", "x"):          "checkpoint",
		file("junk.vhdx", "x"):          "base disk",
		dir:                             "not a file",
	} {
		l.c.BaseVHDX = path
		l.reopen(t)
		err := l.b.Create(t.Context(), spec("vm-1"))
		if err == nil {
			t.Fatalf("%q was taken", path)
		}
		f := fault.From(err)
		if text := f.Message + " " + f.Cause; !strings.Contains(text, words) {
			t.Errorf("%q: %q does not say %q", path, text, words)
		}
		r, err := l.b.Probe(t.Context(), nil)
		if err != nil || r.Usable || len(r.Problems) != 1 {
			t.Errorf("%q: the probe says %+v, %v", path, r, err)
		}
	}
}

func TestDeleteLeavesDisksThatAreNotOurs(t *testing.T) {
	l := newLab(t)
	v := l.create(t, "vm-1")
	precious := filepath.Join(t.TempDir(), "precious.vhdx")
	ok(t, standin.MakeDisk(precious, 1<<30))
	l.update(t, func(w *standin.World) {
		m := w.Find(string(v.ID))
		m.Disks = append(m.Disks, standin.Drive{Path: precious, Controller: "SCSI", Location: 2})
	})
	_, err := l.b.Start(t.Context(), "vm-1", backend.StartOptions{})
	wantFault(t, err, fault.BackendCommandFailed, "other disks")
	ok(t, l.b.Delete(t.Context(), "vm-1"))
	for _, path := range []string{precious, l.c.BaseVHDX} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%s is gone: %v", path, err)
		}
	}
}

func TestMachineChangedByHand(t *testing.T) {
	l := newLab(t)
	for _, c := range []struct {
		name   string
		change func(w *standin.World, v *standin.VM)
		detail string
		left   bool // by Delete, with an error
	}{
		{"notes are gone", func(_ *standin.World, v *standin.VM) { v.Notes = "" }, "notes", false},
		{"taken over", func(_ *standin.World, v *standin.VM) { v.Notes, v.Name = "mine now", "mine" }, "notes", true},
		{"renamed", func(_ *standin.World, v *standin.VM) { v.Name = "other" }, "", false},
		{"removed", func(w *standin.World, v *standin.VM) { w.VMs = nil }, "removed by hand", false},
		{"saved", func(_ *standin.World, v *standin.VM) { v.State = "Saved" }, "", false},
		{"critical", func(_ *standin.World, v *standin.VM) { v.State = "OffCritical" }, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := l.create(t, "vm-1")
			l.update(t, func(w *standin.World) { c.change(w, w.Find(string(v.ID))) })
			info := l.state(t, "vm-1")
			if want := c.detail != ""; want != (info.State == backend.Broken) || !strings.Contains(info.Detail, c.detail) {
				t.Errorf("it is %+v", info)
			}
			all, err := l.b.List(t.Context())
			if err != nil || len(all) != 1 || all[0].State != info.State {
				t.Errorf("List: %+v, %v", all, err)
			}
			err = l.b.Delete(t.Context(), "vm-1")
			if c.left {
				wantFault(t, err, fault.BackendCommandFailed, "left alone")
				if len(l.look(t).VMs) != 1 {
					t.Error("the machine is gone")
				}
				l.update(t, func(w *standin.World) { w.VMs = nil })
				err = l.b.Delete(t.Context(), "vm-1")
			}
			ok(t, err)
			if n := len(l.look(t).VMs); n != 0 {
				t.Errorf("%d machines are left", n)
			}
		})
	}
}

func TestDirectoryRemovedByHand(t *testing.T) {
	l := newLab(t)
	l.create(t, "vm-1")
	m := l.start(t, "vm-1")
	ok(t, os.RemoveAll(l.b.dir("vm-1")))
	if info := l.state(t, "vm-1"); info.State != backend.Broken || info.Detail == "" {
		t.Errorf("it is %+v", info)
	}
	if all, err := l.b.List(t.Context()); err != nil || len(all) != 1 || all[0].State != backend.Broken {
		t.Errorf("List: %+v, %v", all, err)
	}
	ok(t, l.b.Delete(t.Context(), "vm-1"))
	ended(t, m)
	if n := len(l.look(t).VMs); n != 0 {
		t.Errorf("%d machines are left", n)
	}
}

func TestEndsAreToldApart(t *testing.T) {
	l := newLab(t)
	for _, c := range []struct {
		end    func(id string) error
		reason string
		detail string
	}{
		{func(id string) error { return standin.PowerOff(l.world, id) }, backend.ExitGuestOff, "Off"},
		{func(id string) error { return standin.Kill(l.world, id) }, backend.ExitHypervisorDied, "event"},
		{func(id string) error {
			return standin.Update(l.world, func(w *standin.World) { w.VMs = nil })
		}, backend.ExitStopped, "removed in Hyper-V"},
	} {
		v := l.create(t, "vm-1")
		m := l.start(t, "vm-1")
		stream, err := m.DialAgent(t.Context())
		ok(t, err)
		ok(t, c.end(string(v.ID)))
		if e := ended(t, m); e.Reason != c.reason || !strings.Contains(e.Detail, c.detail) {
			t.Errorf("got %+v, want %s with %q", e, c.reason, c.detail)
		}
		// The stream does not outlive the VM.
		for {
			if _, err := stream.Read(make([]byte, 64)); err != nil {
				break
			}
		}
		ok(t, l.b.Delete(t.Context(), "vm-1"))
	}
}

func TestGuestThatDoesNotListen(t *testing.T) {
	l := newLab(t)
	l.update(t, func(w *standin.World) { w.Faults.NoShutdown = true })
	l.create(t, "vm-1")
	m := l.start(t, "vm-1")
	ok(t, m.Stop(t.Context(), 60*time.Millisecond))
	if e := ended(t, m); e.Reason != backend.ExitStopped {
		t.Errorf("exit %+v", e)
	}
	if info := l.state(t, "vm-1"); info.State != backend.Stopped {
		t.Errorf("it is %+v", info)
	}
}
