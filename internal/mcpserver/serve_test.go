package mcpserver

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxforge/internal/fault"
)

// fakeClock stands still until it is told to go on.
type fakeClock struct {
	mu      sync.Mutex
	now     time.Time
	waiters []waiter
	armed   chan time.Duration // every After
}

type waiter struct {
	at time.Time
	ch chan time.Time
}

func newFakeClock() *fakeClock {
	return &fakeClock{now: time.Unix(1e9, 0), armed: make(chan time.Duration, 100)}
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *fakeClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := make(chan time.Time, 1)
	c.waiters = append(c.waiters, waiter{c.now.Add(d), ch})
	c.armed <- d
	return ch
}

func (c *fakeClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	for _, w := range c.waiters {
		if !w.at.After(c.now) {
			select {
			case w.ch <- c.now:
			default:
			}
		}
	}
}

// watchedLog lets a test wait for a line.
type watchedLog struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	news chan struct{}
}

func newWatchedLog() *watchedLog { return &watchedLog{news: make(chan struct{}, 1000)} }

func (w *watchedLog) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(p)
	select {
	case w.news <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (w *watchedLog) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

// await returns the first submatch of what the log says.
func (w *watchedLog) await(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	for {
		if m := re.FindStringSubmatch(w.text()); m != nil {
			return m[len(m)-1]
		}
		select {
		case <-w.news:
		case <-t.Context().Done():
			t.Fatalf("no %q in %s", pattern, w.text())
		case <-time.After(time.Minute):
			t.Fatalf("no %q in %s", pattern, w.text())
		}
	}
}

type served struct {
	clock  *fakeClock
	log    *watchedLog
	stdin  *io.PipeWriter
	done   chan error
	cancel context.CancelFunc
	f      *fake
}

func serveInProcess(t *testing.T, cfg Config, kind StdinKind) *served {
	t.Helper()
	checkLeaks(t)
	v := &served{clock: newFakeClock(), log: newWatchedLog(), done: make(chan error, 1), f: newFake()}
	in, w := io.Pipe()
	v.stdin = w
	ctx, cancel := context.WithCancel(t.Context())
	v.cancel = cancel
	s := New(Options{Service: v.f, Logger: slog.New(slog.NewTextHandler(v.log, nil)), clock: v.clock, stopGrace: 20 * time.Second})
	go func() { v.done <- s.Serve(ctx, cfg, Stdio{In: in, Out: io.Discard, Kind: kind}) }()
	t.Cleanup(func() {
		cancel()
		w.Close()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return v
}

var anyPort = Config{HTTP: true, Host: "127.0.0.1", Stdio: StdioAuto}

// After the stdio client has left, HTTP goes on while it is used and ends ten
// minutes after the last request.
func TestServeOutlivesItsStdioClientWhileUsed(t *testing.T) {
	v := serveInProcess(t, anyPort, StdinPipe)
	url := v.log.await(t, `url=(http://\S+)`)
	v.stdin.Close()
	v.log.await(t, "HTTP goes on")
	if d := <-v.clock.armed; d != idleEnd {
		t.Fatalf("waits %v", d)
	}
	v.clock.advance(9 * time.Minute)
	base := strings.TrimSuffix(url, endpoint)
	exchange{name: "use", method: "POST", body: initialize, status: 200}.run(t, base)
	// The request's end (and its begin) armed the wait anew, in full.
	for d := range v.clock.armed {
		if d == idleEnd {
			break
		}
	}
	v.clock.advance(9 * time.Minute)
	exchange{name: "still there", method: "GET", path: "/", status: 404}.run(t, base) // no use of the endpoint
	v.clock.advance(time.Minute)
	if err := <-v.done; err != nil {
		t.Error(err)
	}
	v.log.await(t, "no request for some time")
}

// A call that is still running is use.
func TestServeIsNotIdleDuringACall(t *testing.T) {
	v := serveInProcess(t, anyPort, StdinPipe)
	url := v.log.await(t, `url=(http://\S+)`)
	c := dial(t, &mcp.StreamableClientTransport{Endpoint: url, MaxRetries: -1}, "2026-07-28", nil)
	called := make(chan error, 1)
	go func() {
		_, err := run(t.Context(), c, "wait")
		called <- err
	}()
	<-v.f.started
	v.stdin.Close()
	v.log.await(t, "HTTP goes on")
	v.clock.advance(time.Hour)
	close(v.f.gate)
	if err := <-called; err != nil {
		t.Errorf("the call: %v", err)
	}
	<-v.clock.armed // only now is it waited
	v.clock.advance(idleEnd)
	if err := <-v.done; err != nil {
		t.Error(err)
	}
}

func TestServeEndsWithItsClientWithoutHTTP(t *testing.T) {
	v := serveInProcess(t, Config{Stdio: StdioAuto}, StdinPipe)
	v.stdin.Close()
	if err := <-v.done; err != nil {
		t.Error(err)
	}
}

func TestServeByHandSaysWhereItListens(t *testing.T) {
	for _, kind := range []StdinKind{StdinTerminal, StdinNull} {
		v := serveInProcess(t, anyPort, kind)
		v.log.await(t, `point an MCP client \(transport streamable-http\) at (http://\S+/mcp)`)
		v.cancel()
		if err := <-v.done; err != nil {
			t.Error(err)
		}
	}
}

func TestServeNothing(t *testing.T) {
	v := serveInProcess(t, Config{Stdio: StdioAuto}, StdinNull)
	err := <-v.done
	if err == nil || !strings.Contains(err.Error(), "nothing to serve") {
		t.Fatal(err)
	}
	if f := fault.From(err); f.Code != fault.InvalidArgument || f.Cause == "" || len(f.NextSteps) == 0 {
		t.Errorf("no cause or remedy: %+v", f)
	}
}

func TestServeRefusesOthersWithoutToken(t *testing.T) {
	v := serveInProcess(t, Config{HTTP: true, Host: "0.0.0.0", Stdio: StdioOff}, StdinNull)
	if err := <-v.done; err == nil || !strings.Contains(err.Error(), "token") {
		t.Error(err)
	}
}

func TestPortTaken(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	cfg := anyPort
	cfg.Port = ln.Addr().(*net.TCPAddr).Port
	// With a stdio client the server goes on and says who holds the port.
	v := serveInProcess(t, cfg, StdinPipe)
	line := v.log.await(t, `level=WARN msg="no HTTP.*`)
	if !strings.Contains(line, fmt.Sprintf("port %d is taken", cfg.Port)) {
		t.Errorf("the warning: %s", line)
	}
	if runtime.GOOS == "linux" && !strings.Contains(line, fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("the holder is pid %d: %s", os.Getpid(), line)
	}
	v.stdin.Close()
	if err := <-v.done; err != nil {
		t.Error(err)
	}
	// Without one there is nothing left to serve.
	v = serveInProcess(t, cfg, StdinNull)
	if err := <-v.done; err == nil || !strings.Contains(err.Error(), "is taken") || !strings.Contains(fmt.Sprint(fault.From(err).NextSteps), "MCP_HTTP_PORT") {
		t.Error(err)
	}
}

// A real process ends in order on SIGTERM although a call runs, a stream is
// open and its stdio client waits.
func TestTerminate(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), serveEnv+"=1", "MCP_HTTP_PORT=0", "SANDBOXFORGE_HOME="+t.TempDir())
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	var stdout lockedBuffer
	cmd.Stdout = &stdout
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log := newWatchedLog()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(log, bufio.NewReader(stderr))
	}()
	url := log.await(t, `url=(http://\S+)`)
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	c := dial(t, &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: tr}, MaxRetries: -1}, "2025-11-25", nil)
	called := make(chan struct{})
	go func() { defer close(called); _, _ = run(t.Context(), c, "block") }()
	fmt.Fprintln(stdin, initialize)
	fmt.Fprintln(stdin, `{"jsonrpc":"2.0","id":"b","method":"tools/call","params":{"name":"run_command","arguments":{"instance_id":"inst_12345678","command":"block"}}}`)
	if _, err := run(t.Context(), c, "echo both calls are under way"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-copied
	if err := cmd.Wait(); err != nil {
		t.Errorf("ended with %v; its log:\n%s", err, log.text())
	}
	for _, bad := range []string{"did not end in time", "had to be cut", "panic"} {
		if strings.Contains(log.text(), bad) {
			t.Errorf("the log says %q:\n%s", bad, log.text())
		}
	}
	<-called
}

func TestPortTakenNamesWhoHasIt(t *testing.T) {
	for program, want := range map[string]struct{ says, next string }{
		"sandboxforge-mcp-server": {"port 8765 is taken by another SandboxForge server (pid 7)", "point the client at it, end it, or set MCP_HTTP_PORT"},
		"nginx":                   {"port 8765 is taken by nginx (pid 7)", "stop what holds it, or set MCP_HTTP_PORT to another port"},
	} {
		f := fault.From(portTaken(8765, program, 7))
		if f.Message != want.says || len(f.NextSteps) != 1 || f.NextSteps[0] != want.next {
			t.Errorf("%s: %q, %q", program, f.Message, f.NextSteps)
		}
	}
}
