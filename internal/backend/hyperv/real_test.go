package hyperv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/backend/backendtest"
	"sandboxforge/internal/backend/hyperv/standin"
	"sandboxforge/internal/guest"
)

// guestEnv names the directory with a guest that has cloud-init and sshd:
// base.vhdx, vmlinuz and initrd, as scripts/hyperv-standin.sh makes them.
const guestEnv = "SANDBOXFORGE_HYPERV_GUEST"

// TestContractOnRealVMs is the contract with QEMU behind the stand-in: the seed
// is read by cloud-init, the agent is installed over ssh, and machines are
// processes that can be killed.
func TestContractOnRealVMs(t *testing.T) {
	if os.Getenv(guestEnv) == "" {
		t.Skip("set " + guestEnv + ", or run scripts/hyperv-standin.sh")
	}
	backendtest.Suite(t, realHarness)
}

func realHarness(t *testing.T) *backendtest.Harness {
	dir := os.Getenv(guestEnv)
	l := newLab(t)
	l.c.Real = true
	ok(t, os.Remove(l.c.BaseVHDX))
	ok(t, os.Symlink(filepath.Join(dir, "base.vhdx"), l.c.BaseVHDX))
	l.c.BootTimeout = 5 * time.Minute
	l.reopen(t)
	l.update(t, func(w *standin.World) {
		w.Real = &standin.Real{
			Binary: "qemu-system-x86_64", Kernel: filepath.Join(dir, "vmlinuz"), Initrd: filepath.Join(dir, "initrd"), Append: "console=ttyS0 root=/dev/vda rw quiet",
		}
	})
	t.Cleanup(func() {
		for _, v := range l.look(t).VMs {
			if t.Failed() {
				console, _ := os.ReadFile(filepath.Join(v.Path, "console.log"))
				t.Logf("console of %s:\n%s", v.Name, console[max(0, len(console)-4<<10):])
			}
			standin.Kill(l.world, string(v.ID)) // what still runs
		}
	})
	h := &backendtest.Harness{
		Backend: l.b, Config: l.c, Open: open, StateDir: l.c.StorageDir, BootDeadline: 5 * time.Minute, Polite: true,
		Spec: func(name string) backend.Spec {
			return backend.Spec{Name: name, CPUs: 1, MemoryMiB: 768, DiskBytes: 6 << 30, Hostname: name}
		},
		HalfMake: func(t *testing.T, name string) { ok(t, os.Mkdir(l.b.dir(name), 0o700)) },
		Kill: func(t *testing.T, info backend.Info) {
			r, err := l.b.readRecord(info.Name)
			ok(t, err)
			ok(t, standin.Kill(l.world, r.ID))
		},
		WaitGone: func(context.Context, backend.Info) error { return nil },
		WaitAgent: func(ctx context.Context, stream io.ReadWriteCloser) (string, error) {
			c, err := guest.Connect(ctx, stream)
			if err != nil {
				return "", err
			}
			defer c.Close()
			p, err := c.Client().Ping(ctx)
			return p.BootID, err
		},
	}
	return h
}

// connectReal connects to where QEMU forwards the port of the machine that has
// the address.
func connectReal(world string) func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	return func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		w, err := standin.Load(world)
		if err != nil {
			return nil, err
		}
		for _, v := range w.VMs {
			if v.Address == to.Addr().String() && v.State == "Running" {
				var d net.Dialer
				return d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", v.Port))
			}
		}
		return nil, errors.New("no route to host")
	}
}

// TestGuestIsProvisioned: what the seed and the installation promise, seen from
// inside.
func TestGuestIsProvisioned(t *testing.T) {
	if os.Getenv(guestEnv) == "" {
		t.Skip("set " + guestEnv + ", or run scripts/hyperv-standin.sh")
	}
	h := realHarness(t)
	s := h.Spec("vm-1")
	s.Hostname = "chosen-name"
	ok(t, h.Backend.Create(t.Context(), s))
	m, err := h.Backend.Start(t.Context(), "vm-1", backend.StartOptions{})
	ok(t, err)
	t.Cleanup(func() { m.Stop(context.Background(), 0) })
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	stream, err := m.DialAgent(ctx)
	if err != nil {
		t.Fatalf("%v\n%s", err, m.Console(8<<10))
	}
	c, err := guest.Connect(ctx, stream)
	ok(t, err)
	defer c.Close()
	t.Logf("the agent answered %.0f s after the start\n%s", time.Since(began).Seconds(), m.Console(8<<10))
	var out []byte
	_, err = c.Client().Run(ctx, guest.NewID("t-"), guest.Spec{
		Command: "hostname; id -un sandbox; grep -c ^ubuntu: /etc/passwd; ls /etc/ssh/*_key | wc -l; df --output=size -BG / | tail -1", User: "root",
	}, func(o guest.Output) { out = append(out, o.Data...) })
	ok(t, err)
	// The name, both users, one host key, and the disk at its size.
	if got := strings.Fields(string(out)); !slices.Equal(got, []string{"chosen-name", "sandbox", "1", "1", "6G"}) {
		t.Errorf("the guest says %q", out)
	}
}
