package doctor

import (
	"os/exec"
	"path/filepath"
	"testing"
)

func TestProcessesSeesARealOne(t *testing.T) {
	vms := t.TempDir()
	// A shell that calls itself a hypervisor; it ends with its input.
	cmd := exec.Command("sh", "-c", "echo up; read x", "disk="+filepath.Join(vms, "agent-12345678", "disk"))
	cmd.Args[0] = "qemu-system-test"
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.Read(make([]byte, 3)) // it runs
	procs, err := Processes(vms)
	in.Close()
	cmd.Wait()
	if err != nil || len(procs) != 1 || procs[0] != (Process{cmd.Process.Pid, "hypervisor", "agent-12345678"}) {
		t.Errorf("got %+v, %v", procs, err)
	}
	if procs, _ = Processes(vms); len(procs) != 0 {
		t.Errorf("it is gone, but %+v", procs)
	}
}
