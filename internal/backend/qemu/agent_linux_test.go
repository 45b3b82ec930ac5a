package qemu

import (
	"context"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/guest"
)

// waitAgent asks the real agent for the guest's boot id.
func waitAgent(ctx context.Context, stream io.ReadWriteCloser) (string, error) {
	c, err := guest.Connect(ctx, stream)
	if err != nil {
		return "", err
	}
	defer c.Close()
	p, err := c.Client().Ping(ctx)
	return p.BootID, err
}

// remember puts a text where only the guest's memory has it, and behind it what
// a torn copy of the memory would not have.
func remember(ctx context.Context, stream io.ReadWriteCloser, text string) error {
	_, err := inGuest(ctx, stream, "printf %s '"+text+"' > /run/remembered && head -c 4194304 /dev/urandom > /run/bulk && sha256sum < /run/bulk > /run/sum && echo ok")
	return err
}

func recall(ctx context.Context, stream io.ReadWriteCloser) (string, error) {
	return inGuest(ctx, stream, "test \"$(sha256sum < /run/bulk)\" = \"$(cat /run/sum)\" && cat /run/remembered")
}

// inGuest runs a command as root over a stream of its own.
func inGuest(ctx context.Context, stream io.ReadWriteCloser, command string) (string, error) {
	c, err := guest.Connect(ctx, stream)
	if err != nil {
		return "", err
	}
	defer c.Close()
	var out strings.Builder
	p, err := c.Client().Run(ctx, guest.NewID("test"), guest.Spec{Command: command, User: "root"}, func(o guest.Output) { out.Write(o.Data) })
	if err == nil && p.ExitCode != 0 {
		err = fmt.Errorf("%s: exit %d: %s", command, p.ExitCode, out.String())
	}
	return strings.TrimSpace(out.String()), err
}

// bootVM starts a created VM, again when an emulated boot fails, and returns a
// client of its agent.
func bootVM(t *testing.T, b *Backend, name string) (*vm, *guest.Client) {
	t.Helper()
	for attempt := 1; ; attempt++ {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
		m, err := b.Start(ctx, name, backend.StartOptions{Cautious: attempt == 3})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Stop(context.Background(), 0) })
		stream, err := m.DialAgent(ctx)
		if err != nil {
			t.Fatal(err)
		}
		connected := make(chan *guest.Conn, 1)
		go func() {
			defer cancel()
			c, err := guest.Connect(ctx, stream)
			if err != nil {
				t.Log(err)
			}
			connected <- c
		}()
		failure := m.(backend.BootWatcher).WatchBoot(ctx)
		cancel()
		if c := <-connected; c != nil {
			t.Cleanup(func() { c.Close() })
			return m.(*vm), c.Client()
		}
		if attempt == 3 {
			t.Fatalf("no agent: %v\n%s", failure, m.Console(3000))
		}
		t.Logf("attempt %d: %v", attempt, failure)
		m.Stop(context.Background(), 0)
	}
}

func ended(t *testing.T, v *vm, reason string) {
	t.Helper()
	select {
	case <-v.Done():
	case <-time.After(2 * time.Minute):
		t.Fatalf("the VM did not end\n%s", v.Console(2000))
	}
	if e := v.Exit(); e.Reason != reason {
		t.Errorf("exit %+v, want %q", e, reason)
	}
}

// What a guest flushed is on its disk after QEMU was killed, and the ways in
// which a guest ends by itself are told apart.
func TestGuestEndsAndItsDiskStays(t *testing.T) {
	b, _ := newBackend(t)
	if err := b.Create(t.Context(), spec("vm-1")); err != nil {
		t.Fatal(err)
	}
	run := func(c *guest.Client, command string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var out strings.Builder
		p, err := c.Run(ctx, guest.NewID("test"), guest.Spec{Command: command, User: "root"}, func(o guest.Output) { out.Write(o.Data) })
		if err != nil || p.ExitCode != 0 {
			t.Fatalf("%s: %+v, %v: %s", command, p, err, out.String())
		}
		return strings.TrimSpace(out.String())
	}
	v, c := bootVM(t, b, "vm-1")
	run(c, "echo kept > /var/mark && sync")
	t.Logf("kill -9 %d, host boot %s", v.info.PID, hostBootID())
	if err := syscall.Kill(v.info.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ended(t, v, backend.ExitHypervisorDied)

	v, c = bootVM(t, b, "vm-1")
	if got := run(c, "cat /var/mark"); got != "kept" {
		t.Errorf("after the kill the file holds %q", got)
	}
	if got := run(c, "cat /proc/sys/kernel/hostname"); got != "vm-1" {
		t.Errorf("host name %q", got)
	}
	if err := c.Reboot(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended(t, v, backend.ExitGuestReset)

	v, c = bootVM(t, b, "vm-1")
	if err := c.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended(t, v, backend.ExitGuestOff)
}
