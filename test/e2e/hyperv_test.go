package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/backend/hyperv/standin"
	"sandboxforge/internal/sandbox"
)

// TestHyperV is an instance's life with the hyperv backend: real binaries and a
// real VM, with a stand-in for powershell.exe between them. Of the backend
// nothing is special but that a VM goes on when its supervisor is killed: the
// server ends it.
func TestHyperV(t *testing.T) {
	guest := os.Getenv("SANDBOXFORGE_HYPERV_GUEST")
	if guest == "" {
		t.Skip("needs a guest and root: run scripts/hyperv-standin.sh")
	}
	world := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(standin.New(world))
	must(standin.Update(world, func(w *standin.World) {
		w.Real = &standin.Real{
			Binary: "qemu-system-x86_64", Kernel: filepath.Join(guest, "vmlinuz"), Initrd: filepath.Join(guest, "initrd"),
			Append: "console=ttyS0 root=/dev/vda rw quiet", Addresses: true,
		}
	}))
	t.Cleanup(func() {
		w, err := standin.Load(world)
		must(err)
		for _, v := range w.VMs {
			t.Errorf("the machine %s is left", v.Name)
			standin.Kill(world, string(v.ID))
		}
	})
	st := newState(t, "SANDBOX_BACKEND=hyperv", "SANDBOXFORGE_TEST_POWERSHELL="+standin.Executable(t, world), "HYPERV_BASE_VHDX="+filepath.Join(guest, "base.vhdx"), "HYPERV_BOOT_TIMEOUT_SECONDS=340")
	out, err := st.cli("doctor")
	t.Logf("doctor:\n%s", out)
	must(err)
	sv := st.start(t)
	write(t, st.workspace, "hello.txt", "from the host\n")
	var res sandbox.CreateInstanceResult
	began := time.Now()
	sv.must(t, "create_instance", obj{
		"workspace_root": st.workspace, "auto_bootstrap": false, "overrides": obj{"vm": obj{"memory_gib": 0.75, "disk_gib": 6}},
	}, &res)
	t.Logf("created after %.0f s: %+v", time.Since(began).Seconds(), res.TimingsMS)
	id := res.InstanceID
	if got := sv.sh(t, id, "hostname; df --output=size -BG / | tail -1"); !strings.HasSuffix(got, "6G") {
		t.Errorf("the guest says %q", got)
	}
	var task sandbox.StartBackgroundTaskResult
	sv.must(t, "start_background_task", obj{"instance_id": id, "command": "sleep 1000"}, &task)

	// Another server sees it.
	other := st.start(t)
	if got := other.sh(t, id, "echo both"); got != "both" {
		t.Errorf("the other server gets %q", got)
	}

	// The supervisor is killed: its VM is vmms's, and goes on until a server
	// ends it.
	kill(t, st.supervisorPID(id))
	storage := filepath.Join(st.home, "state", "hyperv")
	await(t, 2*time.Minute, func() bool {
		w, err := standin.Load(world)
		must(err)
		left, err := filepath.Glob(filepath.Join(storage, "[!.]*"))
		must(err)
		return len(w.VMs) == 0 && len(left) == 0
	})
}
