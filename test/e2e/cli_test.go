package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxforge/internal/sandbox"
)

// sandboxforge runs the command line on this state with an input, and returns
// everything that a caller sees.
func (s *state) sandboxforge(ctx context.Context, stdin string, args ...string) (code int, stdout, stderr string) {
	cmd := exec.CommandContext(ctx, filepath.Join(binDir, "sandboxforge"), args...)
	cmd.Env = s.env
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.ExitCode()
	case err != nil:
		code = -1
		fmt.Fprintln(&errs, err)
	}
	return code, out.String(), errs.String()
}

// TestExecPipes: bytes, streams and exit codes pass through unchanged.
func TestExecPipes(t *testing.T) {
	sv, inst := shared(t)
	id := inst.InstanceID
	short := strings.TrimPrefix(id, "inst_")[:6]
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	big := strings.Repeat(string(every), 40_000) // 10 MB through both ways
	for name, c := range map[string]struct {
		stdin  string
		args   []string
		code   int
		stdout string
		stderr string // a part of it
	}{
		"exit code":       {"", []string{id, "--", "sh", "-c", "exit 7"}, 7, "", ""},
		"no shell":        {"", []string{id, "--", "printf", "%s.", "a b", "$HOME", "*"}, 0, "a b.$HOME.*.", ""},
		"short id":        {"", []string{short, "--", "echo", "x"}, 0, "x\n", ""},
		"both streams":    {"", []string{id, "--", "sh", "-c", "echo o; echo e >&2"}, 0, "o\n", "e\n"},
		"user and cwd":    {"", []string{id, "--user", "root", "--cwd", "/usr", "--", "sh", "-c", "id -un; pwd"}, 0, "root\n/usr\n", ""},
		"env":             {"", []string{id, "-e", "A=b=c", "--", "sh", "-c", "echo $A"}, 0, "b=c\n", ""},
		"every byte":      {string(every), []string{id, "--", "cat"}, 0, string(every), ""},
		"10 MB":           {big, []string{id, "--", "cat"}, 0, big, ""},
		"no such program": {"", []string{id, "--", "no-such-program"}, 127, "", ""},
		"no such user":    {"", []string{id, "-u", "nobody-at-all", "--", "true"}, 125, "", "next:"},
		"ended by signal": {"", []string{id, "--", "sh", "-c", "kill -9 $$"}, 137, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := contextFor(2 * time.Minute)
			defer cancel()
			code, out, errs := sv.sandboxforge(ctx, c.stdin, append([]string{"exec"}, c.args...)...)
			if code != c.code || out != c.stdout || !strings.Contains(errs, c.stderr) {
				t.Errorf("code %d, want %d; %d bytes of stdout, want %d; stderr %q", code, c.code, len(out), len(c.stdout), errs)
			}
		})
	}
}

// TestExecTerminal types into a shell on a terminal in the guest.
func TestExecTerminal(t *testing.T) {
	sv, inst := shared(t)
	master, slave := openPTY(t, 33, 101)
	cmd := exec.Command(filepath.Join(binDir, "sandboxforge"), "exec", inst.InstanceID, "--", "sh")
	cmd.Env = append(append([]string{}, sv.env...), "TERM=xterm", "PS1=$ ")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	screen := make(chan []byte, 64)
	go func() {
		defer close(screen)
		for {
			b := make([]byte, 4096)
			n, err := master.Read(b)
			if err != nil {
				return
			}
			screen <- b[:n]
		}
	}()
	var seen bytes.Buffer
	expect := func(text string) {
		t.Helper()
		timeout := time.After(time.Minute)
		for !strings.Contains(seen.String(), text) {
			select {
			case b, ok := <-screen:
				if !ok {
					t.Fatalf("the terminal closed without %q: %q", text, seen.String())
				}
				seen.Write(b)
			case <-timeout:
				t.Fatalf("no %q on the screen: %q", text, seen.String())
			}
		}
		_, rest, _ := strings.Cut(seen.String(), text)
		seen.Reset()
		seen.WriteString(rest)
	}
	master.WriteString("stty size; tty; echo $TERM\r")
	expect("33 101")
	expect("/dev/pts/")
	expect("xterm")
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 132}); err != nil {
		t.Fatal(err)
	}
	master.WriteString("until [ \"$(stty size)\" = '50 132' ]; do sleep 0.1; done; echo re''sized\r")
	expect("resized")
	// Ctrl-C ends the guest's command, not ours.
	master.WriteString("sleep 4747; echo st''atus $?\r")
	sv.must(t, "run_command", obj{"instance_id": inst.InstanceID, "timeout_seconds": 60,
		"command": "until ps -eo args | grep -q '^[s]leep 4747'; do sleep 0.1; done"}, nil)
	master.WriteString("\x03")
	expect("^C")
	expect("$ ") // input that comes before the interrupt was handled is thrown away with the line
	master.WriteString("echo al''ive\r")
	expect("alive")
	master.WriteString("exit 9\r")
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 9 {
		t.Errorf("the shell's exit 9 came as %v", err)
	}
}

func openPTY(t *testing.T, rows, cols uint16) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// TestExecEndsWhatNobodyReads: like a pipe within one machine.
func TestExecEndsWhatNobodyReads(t *testing.T) {
	sv, inst := shared(t)
	cli := filepath.Join(binDir, "sandboxforge")
	cmd := exec.Command("sh", "-c", cli+" exec "+inst.InstanceID+" -- sh -c 'while :; do echo 4848; done' | head -n 1")
	cmd.Env = sv.env
	if out, err := cmd.Output(); err != nil || string(out) != "4848\n" {
		t.Fatalf("%q, %v", out, err)
	}
	sv.must(t, "run_command", obj{"instance_id": inst.InstanceID, "timeout_seconds": 60,
		"command": "while ps -eo args | grep -q '[e]cho 4848'; do sleep 0.1; done"}, nil)
}

// TestLogsCommand follows a task to its end.
func TestLogsCommand(t *testing.T) {
	sv, inst := shared(t)
	var s sandbox.StartBackgroundTaskResult
	sv.must(t, "start_background_task", obj{"instance_id": inst.InstanceID,
		"command": "for i in 1 2 3; do echo out $i; echo err $i >&2; sleep 1; done"}, &s)
	ctx, cancel := contextFor(2 * time.Minute)
	defer cancel()
	code, out, errs := sv.sandboxforge(ctx, "", "logs", "-f", s.TaskID)
	if code != 0 || out != "out 1\nout 2\nout 3\n" || errs != "err 1\nerr 2\nerr 3\n" {
		t.Errorf("code %d, stdout %q, stderr %q", code, out, errs)
	}
	// A clone has no boot to tell of.
	sv.must(t, "run_command", obj{"instance_id": inst.InstanceID, "command": "echo told to the console >/dev/console", "user": "root"}, nil)
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		code, out, _ = sv.sandboxforge(ctx, "", "logs", "--console", inst.InstanceID)
		if code == 0 && strings.Contains(out, "told to the console") {
			break
		}
		if code != 0 || time.Now().After(end) {
			t.Fatalf("console: code %d, %q", code, lastBytes(out, 500))
		}
	}
}

// TestOperatorsDay is ps, destroy and gc on VMs of a state of its own.
func TestOperatorsDay(t *testing.T) {
	st := newState(t)
	sv := st.start(t)
	inst := sv.create(t, minimal(st.workspace))
	ctx, cancel := contextFor(8 * time.Minute)
	defer cancel()
	code, out, errs := st.sandboxforge(ctx, "", "ps")
	if code != 0 || !strings.Contains(out, inst.InstanceID) || !strings.Contains(out, "running") {
		t.Errorf("ps: code %d, %q, %q", code, out, errs)
	}

	// The supervisor dies and its VM with it; gc records that and says so.
	kill(t, st.supervisorPID(inst.InstanceID))
	await(t, 30*time.Second, func() bool { return st.qemuPID(inst.InstanceID) == 0 })
	code, out, errs = st.sandboxforge(ctx, "", "gc", "--json")
	var gc sandbox.GCResult
	if err := json.Unmarshal([]byte(out), &gc); err != nil || code != 0 || len(gc.Failures) != 0 {
		t.Fatalf("gc: code %d, %v, %q, %q", code, err, out, errs)
	}
	code, out, _ = st.sandboxforge(ctx, "", "gc", "--json")
	if err := json.Unmarshal([]byte(out), &gc); err != nil || code != 0 || len(gc.Actions) != 0 {
		t.Errorf("a second gc still finds work: %s", out)
	}

	other := sv.create(t, minimal(st.workspace))
	code, _, errs = st.sandboxforge(ctx, "", "destroy", strings.TrimPrefix(other.InstanceID, "inst_")[:7])
	if code != 0 || !strings.Contains(errs, "destroyed "+other.InstanceID) {
		t.Errorf("destroy: code %d, %q", code, errs)
	}
	if p := st.left(); len(p) != 0 {
		t.Errorf("still running: %v", p)
	}
	if code, _, errs = st.sandboxforge(ctx, "", "destroy", other.InstanceID); code != 0 {
		t.Errorf("destroying twice: code %d, %q", code, errs)
	}
	code, _, errs = st.sandboxforge(ctx, "", "exec", other.InstanceID, "--", "true")
	if code != 125 || !strings.Contains(errs, "INSTANCE_TERMINAL") {
		t.Errorf("exec in what is gone: code %d, %q", code, errs)
	}
	code, out, errs = st.sandboxforge(ctx, "", "doctor")
	if code != 0 || !strings.Contains(out, "A VM can be made: qemu") {
		t.Errorf("doctor: code %d, %s%s", code, out, errs)
	}
}

// TestDemo is what `make demo` runs, and what an interrupt does to it.
func TestDemo(t *testing.T) {
	st := newState(t)
	ctx, cancel := contextFor(15 * time.Minute)
	defer cancel()
	code, out, errs := st.sandboxforge(ctx, "", "demo", "--json")
	var r struct {
		OK          bool               `json:"ok"`
		GuestOutput string             `json:"guest_output"`
		Artifacts   []sandbox.Artifact `json:"artifacts"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || !r.OK || !strings.HasPrefix(r.GuestOutput, "Linux ") || len(r.Artifacts) != 2 {
		t.Fatalf("code %d, %v\n%s\n%s", code, err, out, lastBytes(errs, 6000))
	}
	if p := st.left(); len(p) != 0 {
		t.Errorf("still running: %v", p)
	}

	cmd := exec.CommandContext(ctx, filepath.Join(binDir, "sandboxforge"), "demo")
	cmd.Env = st.env
	log := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, 2*time.Minute, func() bool { return strings.Contains(log.String(), "→ create_instance") && len(st.processes()) > 0 })
	cmd.Process.Signal(os.Interrupt)
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("an interrupted demo: %v\n%s", err, lastBytes(log.String(), 3000))
	}
	if p := st.left(); len(p) != 0 {
		t.Errorf("the interrupted demo left %v\n%s", p, lastBytes(log.String(), 3000))
	}
}
