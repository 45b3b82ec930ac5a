package sshlink_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/sshlink"
	"sandboxforge/internal/sshlink/sshtest"
)

func run(t *testing.T, c *guest.Client, command string) (string, guest.Process) {
	t.Helper()
	var out bytes.Buffer
	p, err := c.Run(within(t, time.Minute), guest.NewID("t-"), guest.Spec{Command: command}, func(o guest.Output) { out.Write(o.Data) })
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), p
}

// TestInstalledByDigest: a guest without an agent gets one, one that has it is
// left alone, another build replaces it while processes go on.
func TestInstalledByDigest(t *testing.T) {
	p := newPlace(t)
	var installs atomic.Int32
	p.cfg.Progress = func(stage, message string) {
		t.Logf("%s: %s", stage, message)
		if strings.HasPrefix(message, "installing") {
			installs.Add(1)
		}
	}
	c, leave := client(t, sshlink.New(p.cfg))
	if out, proc := run(t, c, "echo there; exit 3"); out != "there\n" || proc.ExitCode != 3 {
		t.Fatalf("%q %+v", out, proc)
	}
	first, loop := p.installed(t), p.loop()
	st, err := os.Stat(filepath.Join(p.root, "run/sandboxforge/agent.sock"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the agent's socket: %v, %v", st.Mode(), err)
	}
	leave()
	c, leave = client(t, sshlink.New(p.cfg)) // as another process of the host would
	if installs.Load() != 1 || p.loop() != loop {
		t.Errorf("%d installations, loop %d, before %d", installs.Load(), p.loop(), loop)
	}
	id := guest.NewID("t-")
	if _, _, err := c.Start(within(t, time.Minute), id, guest.Spec{Command: "read x </proc/self/stat; sleep 3; echo survived; exit 7"}); err != nil {
		t.Fatal(err)
	}

	leave()
	p.cfg.Binaries = func(string) (sshlink.Binaries, error) {
		b, err := built()
		b.Shim = append(bytes.Clone(b.Shim), "another build"...) // an ELF may have a tail
		return b, err
	}
	newer, _ := client(t, sshlink.New(p.cfg))
	if installs.Load() != 2 || p.installed(t) == first || p.loop() == loop {
		t.Errorf("%d installations, stamp %s then %s", installs.Load(), first, p.installed(t))
	}
	shim, err := os.ReadFile(filepath.Join(p.root, "usr/lib/sandboxforge/shim"))
	if err != nil || !bytes.HasSuffix(shim, []byte("another build")) {
		t.Errorf("the shim was not replaced: %v", err)
	}
	var out bytes.Buffer
	proc, err := newer.Follow(within(t, time.Minute), id, guest.Offsets{}, func(o guest.Output) { out.Write(o.Data) })
	if err != nil || proc.ExitCode != 7 || out.String() != "survived\n" {
		t.Errorf("the process that ran over the update: %+v, %v, %q", proc, err, out.String())
	}
	left, err := filepath.Glob(filepath.Join(p.root, "usr/lib/sandboxforge/.new.*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left of installations: %v, %v", left, err)
	}
}

// TestAgentThatDoesNotRun is started, without another upload.
func TestAgentThatDoesNotRun(t *testing.T) {
	p := newPlace(t)
	_, leave := client(t, sshlink.New(p.cfg))
	leave()
	p.stopAgent(t)
	p.cfg.Binaries = func(string) (sshlink.Binaries, error) { return built() }
	var said []string
	p.cfg.Progress = func(_, message string) { said = append(said, message) }
	c, _ := client(t, sshlink.New(p.cfg))
	if out, _ := run(t, c, "echo again"); out != "again\n" {
		t.Errorf("%q", out)
	}
	if len(said) != 1 || !strings.HasPrefix(said[0], "starting") {
		t.Errorf("progress: %q", said)
	}
}

// TestNewStreamTakesTheOldOnesPlace, also where they are of two Links.
func TestNewStreamTakesTheOldOnesPlace(t *testing.T) {
	p := newPlace(t)
	l := sshlink.New(p.cfg)
	defer l.Close()
	first, err := l.Dial(within(t, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	second, err := l.Dial(within(t, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, first); err == nil && n > 64 { // the agent's greeting may be there
		t.Errorf("the old stream still gives %d bytes", n)
	}
	conn, err := guest.Connect(within(t, time.Minute), second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other, err := sshlink.Dial(within(t, time.Minute), p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-conn.Closed():
	case <-time.After(time.Minute):
		t.Error("the connection over the older stream goes on")
	}
	conn2, err := guest.Connect(within(t, time.Minute), other)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := guest.NewClient(conn2.RoundTripper()).Ping(within(t, time.Minute)); err != nil {
		t.Error(err)
	}
	conn2.Close()
}

func TestHostKeys(t *testing.T) {
	p := newPlace(t)
	wrong := p.cfg
	wrong.HostKeys = []ssh.PublicKey{sshtest.NewKey(t).PublicKey()}
	_, err := sshlink.Dial(within(t, time.Minute), wrong)
	if !errors.Is(err, sshlink.ErrHostKey) || !fault.Is(err, fault.BackendCommandFailed) {
		t.Errorf("another host key than the pinned one: %v", err)
	}
	if _, err := os.Stat(filepath.Join(p.root, "usr")); err == nil {
		t.Error("something was installed in a guest with another key")
	}
	// For a while it may be a guest that has not got its keys yet; then the
	// caller's patience decides.
	wrong.HostKeyGrace = time.Hour
	if _, err := sshlink.Dial(within(t, 300*time.Millisecond), wrong); !errors.Is(err, sshlink.ErrHostKey) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("another key within the grace: %v", err)
	}

	var seen []string
	first := p.cfg
	first.HostKeys = nil
	first.FirstUse = func(k ssh.PublicKey) error { seen = append(seen, ssh.FingerprintSHA256(k)); return nil }
	l := sshlink.New(first)
	defer l.Close()
	for range 2 {
		if _, err := l.Dial(within(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 1 || seen[0] != ssh.FingerprintSHA256(p.srv.HostKey) {
		t.Errorf("first use was asked about %q", seen)
	}
	// What was accepted is pinned: another server at the same address is not.
	impostor := newPlace(t)
	var target atomic.Pointer[string]
	target.Store(&p.srv.Addr)
	moved := first
	moved.Dial = func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", *target.Load())
	}
	m := sshlink.New(moved)
	defer m.Close()
	if _, err := m.Dial(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	target.Store(&impostor.srv.Addr)
	if _, err := m.Dial(within(t, time.Minute)); !errors.Is(err, sshlink.ErrHostKey) {
		t.Errorf("another key after the first use: %v", err)
	}
	if err := m.WaitFailed(within(t, time.Minute)); !errors.Is(err, sshlink.ErrHostKey) {
		t.Errorf("WaitFailed: %v", err)
	}

	none := p.cfg
	none.HostKeys = nil
	if _, err := sshlink.Dial(within(t, time.Minute), none); err == nil {
		t.Error("connected without any decision about the host key")
	}
	refused := first
	refused.FirstUse = func(ssh.PublicKey) error { return errors.New("not that one") }
	if _, err := sshlink.Dial(within(t, time.Minute), refused); !errors.Is(err, sshlink.ErrHostKey) {
		t.Errorf("a refused first use: %v", err)
	}
}

// TestGuestThatBoots: neither sshd nor the key is there at first.
func TestGuestThatBoots(t *testing.T) {
	p := newPlace(t)
	var tries atomic.Int32
	p.cfg.Dial = func(ctx context.Context) (net.Conn, error) {
		switch n := tries.Add(1); {
		case n <= 2:
			return nil, errors.New("connection refused")
		case n == 3: // a forwarder that accepts before sshd does
			a, b := net.Pipe()
			b.Close()
			return a, nil
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", p.srv.Addr)
	}
	s, err := sshlink.Dial(within(t, time.Minute), p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	stranger := p.cfg
	stranger.Signer = sshtest.NewKey(t)
	if _, err := sshlink.Dial(within(t, 500*time.Millisecond), stranger); err == nil || !strings.Contains(err.Error(), "unable to authenticate") || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a key that the guest does not take: %v", err)
	}
}

// TestImpatientCallers: a call whose context ends returns at once, and what was
// begun is there for the next.
func TestImpatientCallers(t *testing.T) {
	p := newPlace(t)
	l := sshlink.New(p.cfg)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := l.Dial(over); !errors.Is(err, context.Canceled) {
		t.Fatalf("dial under a context that is over: %v", err)
	}
	eventually(t, "an agent that nobody waits for", func() bool {
		_, err := os.Stat(filepath.Join(p.root, "run/sandboxforge/agent.sock"))
		return err == nil
	})
	n := p.srv.Accepted()
	s, err := l.Dial(within(t, time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if got := p.srv.Accepted(); got != n {
		t.Errorf("the next call made a connection of its own (%d, then %d)", n, got)
	}
	blocked := make(chan error, 1)
	go func() { _, err := io.Copy(io.Discard, s); blocked <- err }()
	l.Close()
	select {
	case <-blocked:
	case <-time.After(time.Minute):
		t.Error("Close leaves a reader blocked")
	}
	if _, err := l.Dial(context.Background()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("dial after Close: %v", err)
	}
}

// TestHangingGuest: whatever the guest is silent in, ctx and Close end it.
func TestHangingGuest(t *testing.T) {
	for what, wrap := range map[string]func(string) string{
		"no hello":      func(string) string { return "sleep 1000" },
		"no installing": func(c string) string { return strings.ReplaceAll(c, "set -eu", "sleep 1000; set -eu") },
	} {
		p := newPlace(t)
		p.srv.Wrap = wrap
		l := sshlink.New(p.cfg)
		if _, err := l.Dial(within(t, 300*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
		closed := make(chan struct{})
		go func() { l.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: Close hangs", what)
		}
	}
}

// TestGuestsThatWillNotDo end the attempt with the reason.
func TestGuestsThatWillNotDo(t *testing.T) {
	for _, c := range []struct {
		what, command string // what the guest runs instead of ours
		says          string
		code          fault.Code
	}{
		{"no sudo", "echo 'sudo: a password is required' >&2; exit 1", "a password is required", fault.RuntimeNotReady},
		{"no shell", "exit 127", "without a word", fault.RuntimeNotReady},
		{"architecture", "echo sandboxforge-hello 1 vax none none no; cat >/dev/null", "vax", fault.UnsupportedByBackend},
		{"noise", "echo sandboxforge-hello 1 x86_64; exit 1", "x86_64", fault.RuntimeNotReady},
		{"disk full", "echo 'tar: No space left on device' >&2; exit 2", "No space left", fault.RuntimeNotReady},
	} {
		t.Run(c.what, func(t *testing.T) {
			p := newPlace(t)
			p.cfg.Binaries = func(arch string) (sshlink.Binaries, error) {
				if arch == "amd64" || arch == "arm64" {
					return built()
				}
				return sshlink.Binaries{}, fmt.Errorf("none for %s", arch)
			}
			p.srv.Wrap = func(ours string) string {
				if c.what == "disk full" && strings.Contains(ours, "sandboxforge-hello") {
					return "echo sandboxforge-hello 1 x86_64 none none no; cat >/dev/null"
				}
				return c.command
			}
			l := sshlink.New(p.cfg)
			defer l.Close()
			_, err := l.Dial(within(t, time.Minute))
			if !fault.Is(err, c.code) {
				t.Fatalf("%v", err)
			}
			f := fault.From(err)
			if text := f.Error() + f.Cause; !strings.Contains(text, c.says) || len(f.NextSteps) == 0 {
				t.Errorf("the error %q because %q says nothing of %q", f, f.Cause, c.says)
			}
			if err := l.WaitFailed(within(t, time.Minute)); !fault.Is(err, c.code) {
				t.Errorf("WaitFailed: %v", err)
			}
		})
	}
}

// TestKilledAgentComesBack, and its processes are still its.
func TestKilledAgentComesBack(t *testing.T) {
	p := newPlace(t)
	c, _ := client(t, sshlink.New(p.cfg))
	id := guest.NewID("t-")
	if _, _, err := c.Start(within(t, time.Minute), id, guest.Spec{Command: "sleep 2; echo survived; exit 9"}); err != nil {
		t.Fatal(err)
	}
	killAgent(t, p)
	var out bytes.Buffer
	proc, err := c.Follow(within(t, time.Minute), id, guest.Offsets{}, func(o guest.Output) { out.Write(o.Data) })
	if err != nil || proc.ExitCode != 9 || out.String() != "survived\n" {
		t.Errorf("%+v, %v, %q", proc, err, out.String())
	}
}

func killAgent(t *testing.T, p *place) {
	t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	want := p.root + "/usr/lib/sandboxforge/agent\x00serve\x00"
	for _, e := range entries {
		if b, err := os.ReadFile(e); err == nil && strings.HasPrefix(string(b), want) {
			var pid int
			fmt.Sscanf(e, "/proc/%d/", &pid)
			syscall.Kill(pid, syscall.SIGKILL)
			return
		}
	}
	t.Fatal("no agent runs")
}

func digest(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }
