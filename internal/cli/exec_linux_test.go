package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// openPTY returns both ends of a new terminal.
func openPTY(t *testing.T, rows, cols uint16) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	setSize(t, master, rows, cols)
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

func setSize(t *testing.T, f *os.File, rows, cols uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(f.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		t.Fatal(err)
	}
}

func isRaw(t *testing.T, tty *os.File) bool {
	t.Helper()
	tio, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return tio.Lflag&unix.ICANON == 0
}

func TestExecOnATerminal(t *testing.T) {
	master, slave := openPTY(t, 24, 80)
	t.Setenv("TERM", "vt220")
	f := &fakeService{instances: []sandbox.Instance{instance("11111111", "running")}}
	f.exec = func(ctx context.Context, o sandbox.ExecOptions) (*sandbox.ExecResult, error) {
		if o.TTY == nil || o.TTY.Rows != 24 || o.TTY.Cols != 80 || o.Env["TERM"] != "vt220" {
			t.Errorf("TTY %+v, TERM %q", o.TTY, o.Env["TERM"])
			return &sandbox.ExecResult{}, nil
		}
		if !isRaw(t, slave) {
			t.Error("the terminal is not in raw mode while the command runs")
		}
		setSize(t, master, 50, 132)
		syscall.Kill(os.Getpid(), syscall.SIGWINCH)
		select {
		case s := <-o.TTY.Resize:
			if s.Rows != 50 || s.Cols != 132 {
				t.Errorf("resized to %+v", s)
			}
		case <-time.After(10 * time.Second):
			t.Error("the change of size did not arrive")
		}
		// Ctrl-C is a byte for the guest, not a signal for us.
		master.Write([]byte{3})
		b := make([]byte, 1)
		if _, err := io.ReadFull(o.Stdin, b); err != nil || b[0] != 3 {
			t.Errorf("read %v, %v", b, err)
		}
		io.WriteString(o.Stdout, "bye\r\n")
		return &sandbox.ExecResult{ExitCode: 3}, nil
	}
	env := f.env(t)
	env.Stdin, env.Stdout, env.Stderr = slave, slave, slave
	if code := Main([]string{"exec", "1111", "--", "bash"}, env); code != 3 {
		t.Errorf("code %d", code)
	}
	if isRaw(t, slave) {
		t.Error("the terminal did not get its mode back")
	}
	b := make([]byte, 64)
	n, _ := master.Read(b)
	if !bytes.Contains(b[:n], []byte("bye\r\n")) {
		t.Errorf("the terminal shows %q", b[:n])
	}

	// -T: no terminal for the command although there is one here.
	f.exec = func(_ context.Context, o sandbox.ExecOptions) (*sandbox.ExecResult, error) {
		if o.TTY != nil || isRaw(t, slave) {
			t.Error("-T still made a terminal")
		}
		return &sandbox.ExecResult{}, nil
	}
	if code := Main([]string{"exec", "-T", "1111", "--", "true"}, env); code != 0 {
		t.Errorf("code %d", code)
	}
}

func TestExecHandsAnInterruptOnAndGivesUpAtTheSecond(t *testing.T) {
	f := &fakeService{instances: []sandbox.Instance{instance("11111111", "running")}}
	f.exec = func(ctx context.Context, o sandbox.ExecOptions) (*sandbox.ExecResult, error) {
		syscall.Kill(os.Getpid(), syscall.SIGINT)
		if n := <-o.Signals; n != 2 {
			t.Errorf("signal %d was handed on", n)
		}
		if ctx.Err() != nil {
			t.Error("the first interrupt already gave up")
		}
		syscall.Kill(os.Getpid(), syscall.SIGINT)
		<-ctx.Done()
		return nil, fault.Wrap(ctx.Err(), fault.Cancelled, "cancelled")
	}
	if code, _, _ := f.run(t, "exec", "1111", "--", "sleep", "9"); code != exitInterrupted {
		t.Errorf("code %d", code)
	}
}

func TestExecEndsTheCommandWhenNobodyReads(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	f := &fakeService{instances: []sandbox.Instance{instance("11111111", "running")}}
	f.exec = func(ctx context.Context, o sandbox.ExecOptions) (*sandbox.ExecResult, error) {
		for ctx.Err() == nil {
			io.WriteString(o.Stdout, "y\n")
		}
		return nil, fault.Wrap(ctx.Err(), fault.Cancelled, "cancelled")
	}
	env := f.env(t)
	env.Stdout = w
	if code := Main([]string{"exec", "1111", "--", "yes"}, env); code != exitBrokenPipe {
		t.Errorf("code %d", code)
	}
}
