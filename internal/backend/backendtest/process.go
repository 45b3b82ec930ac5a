package backendtest

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// otherProcess is a process that has done one operation and stays until let go.
type otherProcess struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	answer answer
}

// inOtherProcess runs an operation in another process and returns when it has
// been done. The process ends with the test at the latest.
func (h *Harness) inOtherProcess(t *testing.T, op, name string) *otherProcess {
	t.Helper()
	cmd := h.command(t, order{Op: op, Spec: h.Spec(name)})
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 10 * time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &otherProcess{cmd: cmd, stdin: stdin}
	t.Cleanup(p.kill)
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p.answer)
	}
	if err != nil {
		t.Fatalf("the other process answered %q: %v", line, err)
	}
	return p
}

// command runs the operation when started, and stays until its stdin ends.
func (h *Harness) command(t *testing.T, o order) *exec.Cmd {
	t.Helper()
	o.Config = h.config(t)
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), helperEnv+"="+string(text))
	return cmd
}

// killedWhile runs an operation in another process and kills that with SIGKILL
// after d, whatever it is at. It reports whether the operation was done by then.
func (h *Harness) killedWhile(t *testing.T, op, name string, d time.Duration) (done bool) {
	t.Helper()
	cmd := h.command(t, order{Op: op, Spec: h.Spec(name)})
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(d, func() { cmd.Process.Kill() })
	defer timer.Stop()
	_, err = bufio.NewReader(stdout).ReadBytes('\n')
	cmd.Process.Kill()
	stdin.Close()
	cmd.Wait()
	t.Logf("%s in pid %d, killed after %s at the latest; done: %v", op, cmd.Process.Pid, d, err == nil)
	return err == nil
}

// kill ends the process with SIGKILL, and reaps it.
func (p *otherProcess) kill() {
	p.cmd.Process.Kill()
	p.stdin.Close()
	p.cmd.Wait()
}
