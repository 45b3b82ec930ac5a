package lima

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/backend/backendtest"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/standin/limactl"
)

// The tests with VMs: the stand-in's, of the minimal image with an sshd and
// without our agent.

var vmImage = sync.OnceValues(func() (string, error) {
	dir := os.Getenv("SANDBOX_IMAGE_DIR")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", ".build", "images")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	return limactl.Image(ctx, dir)
})

func vmConfig(t *testing.T) Config {
	t.Helper()
	if testing.Short() {
		t.Skip("boots VMs")
	}
	image, err := vmImage()
	if err != nil {
		t.Fatal(err)
	}
	c := newConfig(t, "LIMACTL_STANDIN_DRIVER=qemu", "LIMACTL_STANDIN_IMAGE="+image)
	c.GuestRoot = ""
	return c
}

func ping(ctx context.Context, stream io.ReadWriteCloser) (string, error) {
	c, err := guest.Connect(ctx, stream)
	if err != nil {
		return "", err
	}
	defer c.Close()
	p, err := c.Client().Ping(ctx)
	return p.BootID, err
}

// TestContractWithVMs is the contract with guests that boot.
func TestContractWithVMs(t *testing.T) {
	backendtest.Suite(t, func(t *testing.T) *backendtest.Harness {
		h := newHarness(t, vmConfig(t))
		h.WaitAgent, h.BootDeadline = ping, 5*time.Minute
		h.Polite = false // its process 1 does not hear a power button
		return h
	})
}

func connect(t *testing.T, m backend.Machine) (*guest.Client, func()) {
	t.Helper()
	l := guest.NewLink(m.DialAgent, nil)
	if err := l.WaitConnected(within(t, 5*time.Minute)); err != nil {
		t.Fatalf("%v\n%s", err, m.Console(4<<10))
	}
	leave := sync.OnceFunc(func() { l.Close() })
	t.Cleanup(leave)
	return guest.NewClient(l), leave
}

func output(t *testing.T, c *guest.Client, s guest.Spec) string {
	t.Helper()
	var out strings.Builder
	p, err := c.Run(within(t, time.Minute), guest.NewID("t-"), s, func(o guest.Output) { out.Write(o.Data) })
	if err != nil || p.ExitCode != 0 {
		t.Errorf("%s: %+v, %v: %s", s.Command, p, err, out.String())
	}
	return strings.TrimSpace(out.String())
}

// TestGuest: a guest of a stock image becomes one of ours, also by way of a
// base; its processes outlive the connection; and it powers itself off at its
// deadline, which its owner sees.
func TestGuest(t *testing.T) {
	needsAgent(t)
	c := vmConfig(t)
	b := newBackend(t, c)
	began := time.Now()
	if err := b.Prepare(within(t, 10*time.Minute), spec("any"), func(stage, message string) { t.Logf("%.1f s: %s: %s", time.Since(began).Seconds(), stage, message) }); err != nil {
		t.Fatal(err)
	}
	t.Logf("the base took %.1f s", time.Since(began).Seconds())
	began = time.Now()
	createVM(t, b, "vm-1")
	cloned := time.Since(began)
	m := startVM(t, b, "vm-1")
	g, leave := connect(t, m)
	t.Logf("clone %.2f s, from the create to the agent's answer %.1f s", cloned.Seconds(), time.Since(began).Seconds())

	for what, s := range map[string]struct {
		spec guest.Spec
		want string
	}{
		"the user":       {guest.Spec{Command: "id -un"}, "sandbox"},
		"becomes root":   {guest.Spec{Command: "sudo -n id -un 2>/dev/null"}, "root"},
		"root by name":   {guest.Spec{Command: "id -un", User: "root"}, "root"},
		"the workspace":  {guest.Spec{Command: "touch /workspace/x && stat -c %U /workspace/x"}, "sandbox"},
		"one agent runs": {guest.Spec{Command: "grep -lz 'serve$' /proc/[0-9]*/cmdline 2>/dev/null | wc -l; stat -c %a /run/sandboxforge/agent.sock", User: "root"}, "1\n600"},
	} {
		if got := output(t, g, s.spec); got != s.want {
			t.Errorf("%s: %q, want %q", what, got, s.want)
		}
	}
	var took []time.Duration
	for range 20 {
		began := time.Now()
		output(t, g, guest.Spec{Command: "true"})
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("a command over the open connection: median %v of %d", took[len(took)/2], len(took))

	id := guest.NewID("t-")
	if _, _, err := g.Start(within(t, time.Minute), id, guest.Spec{Command: "sleep 4; echo survived; exit 9"}); err != nil {
		t.Fatal(err)
	}
	leave()
	g, _ = connect(t, m)
	var out strings.Builder
	p, err := g.Follow(within(t, time.Minute), id, guest.Offsets{}, func(o guest.Output) { out.Write(o.Data) })
	if err != nil || p.ExitCode != 9 || out.String() != "survived\n" {
		t.Errorf("after the connection was lost: %+v, %v, %q", p, err, out.String())
	}
	if info, err := g.Info(within(t, time.Minute)); err != nil || info.RootDeviceBytes != uint64(spec("x").DiskBytes) {
		t.Errorf("the disk: %+v, %v", info, err)
	}
	if err := g.SetDeadline(within(t, time.Minute), 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if e := ended(t, m); e.Reason != backend.ExitGuestOff {
		t.Errorf("at its deadline the guest ended as %+v", e)
	}
	if i := state(t, b, "vm-1"); i.State != backend.Stopped {
		t.Errorf("%+v", i)
	}
	if key, err := os.ReadFile(filepath.Join(b.dir("vm-1"), hostKeyFile)); err != nil || !strings.HasPrefix(string(key), "ssh-") && !strings.HasPrefix(string(key), "ecdsa-") {
		t.Errorf("the host key that was shown first is not recorded: %q, %v", key, err)
	}
}
