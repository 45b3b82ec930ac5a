package sshlink_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sandboxforge/internal/guest"
	"sandboxforge/internal/sshlink"
	"sandboxforge/internal/sshlink/sshtest"
)

// built is the agent and its shim as they would be in a guest, of this source.
var built = sync.OnceValues(func() (sshlink.Binaries, error) {
	var b sshlink.Binaries
	dir, err := os.MkdirTemp("", "sshlink-")
	if err != nil {
		return b, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("go", "build", "-o", dir, "sandboxforge/cmd/sandboxforge-agent", "sandboxforge/cmd/sandboxforge-shim")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return b, fmt.Errorf("%w: %s", err, out)
	}
	if b.Agent, err = os.ReadFile(filepath.Join(dir, "sandboxforge-agent")); err == nil {
		b.Shim, err = os.ReadFile(filepath.Join(dir, "sandboxforge-shim"))
	}
	return b, err
})

// place is a directory of this host that plays a guest, behind an sshd.
type place struct {
	root string
	srv  *sshtest.Server
	cfg  sshlink.Config
}

func newPlace(t *testing.T) *place {
	t.Helper()
	root, err := os.MkdirTemp("", "sg") // sockets need a short path
	if err != nil {
		t.Fatal(err)
	}
	p := &place{root: root, srv: sshtest.New(t)}
	t.Cleanup(func() {
		p.stopAgent(t)
		os.RemoveAll(root)
	})
	p.cfg = sshlink.Config{
		Address: p.srv.Addr, User: "somebody", Signer: p.srv.Client, HostKeys: []ssh.PublicKey{p.srv.HostKey},
		Binaries: func(string) (sshlink.Binaries, error) { return built() },
		Root:     root,
	}
	return p
}

// stopAgent ends what keeps the agent running, and with it the agent.
func (p *place) stopAgent(t *testing.T) {
	t.Helper()
	if pid := p.loop(); pid != 0 {
		syscall.Kill(pid, syscall.SIGTERM)
		eventually(t, "the agent's end", func() bool {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // a zombie has none
			return len(b) == 0
		})
	}
}

// loop is the process that keeps the agent running, 0 if none was started.
func (p *place) loop() int {
	b, err := os.ReadFile(filepath.Join(p.root, "run/sandboxforge/loop.pid"))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return pid
}

func (p *place) installed(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(p.root, "usr/lib/sandboxforge/stamp"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// client is a guest client over a Link, as a supervisor has it; leave ends both.
// There is one at a time: two would take the agent from each other.
func client(t *testing.T, l *sshlink.Link) (c *guest.Client, leave func()) {
	t.Helper()
	g := guest.NewLink(l.Dial, nil)
	leave = sync.OnceFunc(func() {
		g.Close()
		l.Close()
	})
	t.Cleanup(leave)
	if err := g.WaitConnected(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	return guest.NewClient(g), leave
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for a state that no event announces.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}
