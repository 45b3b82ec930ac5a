package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/host"
	"sandboxforge/internal/mcpserver"
)

// getEnv makes the test binary a peer that asks for a URL and prints the
// status, or why it got none.
const getEnv = "SANDBOXFORGE_TEST_GET"

func TestMain(m *testing.M) {
	url := os.Getenv(getEnv)
	if url == "" {
		os.Exit(m.Run())
	}
	c := http.Client{Timeout: 20 * time.Second}
	res, err := c.Get(url)
	if err != nil {
		fmt.Print(err)
		os.Exit(7)
	}
	fmt.Print(res.StatusCode)
	res.Body.Close()
}

// getAs asks for the URL as a program of that name.
func getAs(t *testing.T, name, url string) (status string, err error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	b, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(path, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path)
	cmd.Env = append(os.Environ(), getEnv+"="+url, "NO_PROXY=*", "no_proxy=*")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return string(out), err
}

// lines is a log that tells the URL as soon as the server listens.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
	url chan string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, rest, ok := strings.Cut(string(p), " url="); ok {
		url, _, _ := strings.Cut(rest, " ")
		select {
		case l.url <- url:
		default:
		}
	}
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// serveWith serves HTTP on a free port behind the check.
func serveWith(t *testing.T, token string) (url string, log *lines) {
	t.Helper()
	log = &lines{url: make(chan string, 1)}
	l := slog.New(slog.NewTextHandler(log, nil))
	s := mcpserver.New(mcpserver.Options{Logger: l, RefusePeer: newPeers(l, token != "").refuse})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	cfg := mcpserver.Config{HTTP: true, Host: "127.0.0.1", Token: token, Stdio: mcpserver.StdioOff}
	go func() { done <- s.Serve(ctx, cfg, mcpserver.Stdio{Kind: mcpserver.StdinNull}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	select {
	case url = <-log.url:
		return url, log
	case err := <-done:
		done <- err
		t.Fatalf("not served: %v", err)
		return "", nil
	}
}

func TestHypervisorIsRefused(t *testing.T) {
	for _, token := range []string{"", "s3cret"} {
		t.Run("token "+token, func(t *testing.T) {
			url, log := serveWith(t, token)
			served := "406" // a plain GET is no MCP
			if token != "" {
				served = "401"
			}
			if got, err := getAs(t, "some-client", url); got != served {
				t.Errorf("a program of this user: %q, %v", got, err)
			}
			for range 2 {
				got, err := getAs(t, "qemu-system-test", url)
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() != 7 {
					t.Errorf("a hypervisor: %q, %v", got, err)
				}
			}
			if n := strings.Count(log.String(), "it comes from a hypervisor"); n != 2 || !strings.Contains(log.String(), "qemu-system-test") {
				t.Errorf("%d warnings for two processes:\n%s", n, log)
			}
			if got, err := getAs(t, "some-client", url); got != served {
				t.Errorf("afterwards: %q, %v", got, err)
			}
		})
	}
}

func TestWhoIsRefused(t *testing.T) {
	conn, other := net.Pipe()
	defer conn.Close()
	defer other.Close()
	unknown := fmt.Errorf("%w: the reason", host.ErrPeerUnknown)
	for _, c := range []struct {
		name    string
		exe     string
		err     error
		token   bool
		refused bool
	}{
		{name: "a client", exe: "/usr/bin/node"},
		{name: "a client with a token", exe: "/usr/bin/node", token: true},
		{name: "a VM", exe: "/usr/bin/qemu-system-x86_64", refused: true},
		{name: "a VM that may know the token", exe: "/usr/bin/qemu-system-x86_64", token: true, refused: true},
		{name: "unknown", err: unknown, refused: true},
		{name: "unknown, and the token decides", err: unknown, token: true},
		{name: "another platform", err: errors.ErrUnsupported},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			p := newPeers(slog.New(slog.NewTextHandler(&log, nil)), c.token)
			p.lookup = func(net.Conn, ...int) (int, string, error) { return 42, c.exe, c.err }
			for range 3 {
				if got := p.refuse(conn); (got != "") != c.refused {
					t.Errorf("refused: %q", got)
				}
			}
			if n := strings.Count(log.String(), "level=WARN"); n > 1 || (n == 1) != c.refused {
				t.Errorf("%d warnings:\n%s", n, log.String())
			}
		})
	}
}

// A client that has closed its end before it is looked at is nobody's.
func TestPeerThatHasGone(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp4", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "POST /mcp HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	c.Close()
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if newPeers(slog.New(slog.DiscardHandler), false).refuse(conn) == "" {
		t.Error("served")
	}
}
