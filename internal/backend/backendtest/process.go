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
	o, err := json.Marshal(order{Config: h.config(t), Op: op, Name: name})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), helperEnv+"="+string(o))
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

// kill ends the process with SIGKILL, and reaps it.
func (p *otherProcess) kill() {
	p.cmd.Process.Kill()
	p.stdin.Close()
	p.cmd.Wait()
}
