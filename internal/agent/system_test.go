package agent_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxforge/internal/guest"
)

func TestInfo(t *testing.T) {
	w := newWorld(t)
	ctx := w.context()
	p, err := w.client.Ping(ctx)
	if err != nil || p.AgentVersion != "test" || p.BootID == "" {
		t.Fatalf("%+v %v", p, err)
	}
	i, err := w.client.Info(ctx)
	if err != nil || i.Kernel == "" || i.MemoryBytes == 0 || i.MemoryAvailable == 0 || i.CPUs == 0 || i.RootSize == 0 ||
		i.Uptime <= 0 || i.BootID != p.BootID || time.Since(i.Time).Abs() > time.Minute || i.ProtocolVersion != 1 {
		t.Fatalf("%+v %v", i, err)
	}
}

func TestIdentity(t *testing.T) {
	w := newWorld(t)
	ctx := w.context()
	os.WriteFile(filepath.Join(w.cfg.Etc, "hostname"), []byte("old\n"), 0o644)
	os.WriteFile(filepath.Join(w.cfg.Etc, "hosts"), []byte("127.0.0.1 localhost\n127.0.1.1 old\n10.0.0.1 other"), 0o644)
	id := guest.Identity{Hostname: "agent-1234", MachineID: strings.Repeat("ab", 16)}
	for range 2 {
		if err := w.client.SetIdentity(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"hostname": "agent-1234\n", "machine-id": strings.Repeat("ab", 16) + "\n",
		"hosts": "127.0.0.1 localhost\n10.0.0.1 other\n127.0.1.1\tagent-1234\n",
	} {
		if b, _ := os.ReadFile(filepath.Join(w.cfg.Etc, name)); string(b) != want {
			t.Errorf("%s: %q", name, b)
		}
	}
	for _, bad := range []guest.Identity{{Hostname: "a b"}, {Hostname: "-a"}, {Hostname: "x\n127.0.0.1 evil"}, {MachineID: "xyz"}} {
		if err := w.client.SetIdentity(ctx, bad); !errors.Is(err, guest.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestDeadline(t *testing.T) {
	w := newWorld(t)
	ctx := w.context()
	for _, d := range []time.Duration{time.Hour, time.Millisecond, 0} {
		if err := w.client.SetDeadline(ctx, d); err != nil {
			t.Fatal(err)
		}
		if d == time.Millisecond {
			if reboot := <-w.poweredOff; reboot {
				t.Fatal("rebooted")
			}
		}
	}
	if err := w.client.SetDeadline(ctx, 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := w.client.SetDeadline(ctx, -1); err != nil {
		t.Fatal(err)
	}
	if err := w.client.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	if reboot := <-w.poweredOff; !reboot {
		t.Fatal("a disarmed deadline passed")
	}
}

func TestDial(t *testing.T) {
	w := newWorld(t)
	ctx := w.context()
	sock := filepath.Join(w.dir, "s")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Write(append([]byte("got "), b...))
	})}
	go srv.Serve(l)
	defer srv.Close()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return w.client.DialContext(ctx, "unix", sock)
	}}
	defer tr.CloseIdleConnections()
	hc := &http.Client{Transport: tr}
	for range 3 {
		body := strings.Repeat("x", 1<<20)
		resp, err := hc.Post("http://docker/", "text/plain", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(b) != "got "+body {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
	}

	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(c, c) // until the other end has shut down writing
				c.Write([]byte("bye"))
				c.Close()
			}()
		}
	}()
	c, err := w.client.DialContext(ctx, "tcp", echo.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Write([]byte("hello "))
	c.(interface{ CloseWrite() error }).CloseWrite()
	if b, err := io.ReadAll(c); err != nil || string(b) != "hello bye" {
		t.Fatalf("%q %v", b, err)
	}
	c.Close()
	c, err = w.client.DialContext(ctx, "tcp", echo.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("err = %v", err)
	}
	c.Close()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("err = %v", err)
	}

	echo.Close()
	if _, err := w.client.DialContext(ctx, "tcp", echo.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) || !errors.Is(err, guest.ErrFailedPrecondition) {
		t.Fatalf("err = %v", err)
	}
	if _, err := w.client.DialContext(ctx, "unix", sock+"none"); !errors.Is(err, syscall.ENOENT) {
		t.Fatalf("err = %v", err)
	}
	if _, err := w.client.DialContext(ctx, "udp", "127.0.0.1:1"); !errors.Is(err, guest.ErrInvalid) {
		t.Fatalf("err = %v", err)
	}
}

// TestThroughProxy runs the protocol through the handler that a supervisor
// serves on its socket.
func TestThroughProxy(t *testing.T) {
	w := newWorld(t)
	w.context()
	dir, err := os.MkdirTemp("", "sf")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: guest.Proxy(w.link, nil), HTTP2: guest.ServerConfig(), Protocols: new(http.Protocols)}
	srv.Protocols.SetUnencryptedHTTP2(true)
	go srv.Serve(l)
	defer srv.Close()
	rt := guest.DialHTTP2(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(dir, "s"))
	})
	defer rt.CloseIdleConnections()
	direct := w.client
	w.client = guest.NewClient(rt)
	out, _, p := w.run(guest.Spec{Command: "echo through; cat; exit 4", Stdin: []byte("proxy")})
	if out != "through\nproxy" || p.ExitCode != 4 {
		t.Fatalf("%q %+v", out, p)
	}
	id := guest.NewID("px-")
	w.client.Start(w.context(), id, guest.Spec{Command: "cat", StdinOpen: true})
	a, err := w.client.Attach(w.context(), id, guest.Offsets{})
	if err != nil {
		t.Fatal(err)
	}
	a.SendStdin([]byte("both ways"))
	for {
		ev, err := a.Next()
		if err != nil {
			t.Fatal(err)
		}
		if ev.Output != nil {
			break
		}
	}
	a.CloseStdin()
	if _, p := drainAttachment(t, a); p.ExitCode != 0 {
		t.Fatalf("%+v", p)
	}
	a.Close()

	// No link: a change is known not to have happened.
	w.link.Pause()
	err = w.client.WriteFile(context.Background(), filepath.Join(w.dir, "f"), nil, 0, "")
	if !errors.Is(err, guest.ErrUnavailable) || errors.Is(err, guest.ErrOutcomeUnknown) {
		t.Fatalf("err = %v", err)
	}
	// A run that starts now waits for the link.
	done := make(chan error, 1)
	go func() {
		_, err := w.client.Run(context.Background(), "waits", guest.Spec{Command: "true"}, nil)
		done <- err
	}()
	w.link.Resume()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	// A change whose answer is lost with the link is of unknown outcome.
	w.context()
	pr, pw := io.Pipe()
	go func() {
		_, err := w.client.PutTar(context.Background(), guest.PutTar{Root: filepath.Join(w.dir, "r")}, pr)
		done <- err
	}()
	pw.Write(make([]byte, 1024))
	eventually(t, "the put has begun", func() bool { _, err := os.Stat(filepath.Join(w.dir, "r")); return err == nil })
	w.link.Pause()
	go pw.Close()
	if err := <-done; !errors.Is(err, guest.ErrOutcomeUnknown) || !errors.Is(err, guest.ErrUnavailable) {
		t.Fatalf("err = %v", err)
	}
	w.link.Resume()
	w.client = direct
}
