package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandboxforge/internal/agent"
	"sandboxforge/internal/agent/shim"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/link"
)

// The test binary is also the shim and, for the restart tests, the agent.
func TestMain(m *testing.M) {
	switch os.Getenv("SANDBOXFORGE_TEST_ROLE") {
	case "shim":
		os.Exit(shim.Main())
	case "agent":
		os.Exit(agentProcess())
	}
	os.Exit(m.Run())
}

// selfShim is how a test agent starts its shims.
func selfShim(t testing.TB) []string {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"/usr/bin/env", "SANDBOXFORGE_TEST_ROLE=shim", exe}
}

// cgroupRoot is where tests can make cgroups, or "".
func cgroupRoot() string {
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(mount, "cgroup.procs")); err != nil {
			continue
		}
		dir := filepath.Join(mount, fmt.Sprintf("sandboxforge-test-%d", os.Getpid()))
		if os.Mkdir(dir, 0o755) == nil {
			os.Remove(dir)
			return dir
		}
	}
	return ""
}

// world is an agent in a temporary directory with a client at the other end of
// a stream in memory.
type world struct {
	t          testing.TB
	cfg        agent.Config
	agent      *agent.Agent
	client     *guest.Client
	link       *guest.Link
	dir        string
	poweredOff chan bool

	mu    sync.Mutex
	wrap  func(io.ReadWriteCloser) io.ReadWriteCloser // of the host's end
	ctx   context.Context
	stop  context.CancelFunc
	serve sync.WaitGroup
}

type option func(*world)

func withCgroup(dir string) option { return func(w *world) { w.cfg.Cgroup = dir } }

func newWorld(t testing.TB, opts ...option) *world {
	t.Helper()
	dir := t.TempDir()
	etc := filepath.Join(dir, "etc")
	os.Mkdir(etc, 0o755)
	for _, f := range []string{"passwd", "group", "profile"} {
		b, _ := os.ReadFile("/etc/" + f)
		os.WriteFile(filepath.Join(etc, f), b, 0o644)
	}
	os.Chmod(dir, 0o755)
	w := &world{t: t, dir: dir, poweredOff: make(chan bool, 10), cfg: agent.Config{
		Version: "test", RunDir: filepath.Join(dir, "run"), SpoolDir: filepath.Join(dir, "spool"),
		Shim: selfShim(t), User: fmt.Sprint(os.Geteuid()), Etc: etc,
		Log: slog.New(slog.NewTextHandler(testLog{t}, nil)),
	}}
	w.cfg.PowerOff = func(reboot bool) { w.poweredOff <- reboot }
	for _, o := range opts {
		o(w)
	}
	w.ctx, w.stop = context.WithCancel(context.Background())
	w.boot()
	w.link = guest.NewLink(w.dial, w.cfg.Log)
	w.client = guest.NewClient(w.link)
	t.Cleanup(func() {
		// Processes are ended before the directories go.
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if list, err := w.client.List(ctx); err == nil {
			for _, p := range list {
				w.client.Signal(ctx, p.ID, guest.SIGKILL, true)
			}
			for _, p := range list {
				w.client.Get(ctx, p.ID, 5*time.Second)
				w.client.Forget(ctx, p.ID)
			}
		}
		w.link.Close()
		w.shutdown()
		if w.cfg.Cgroup != "" {
			shim.RemoveCgroup(w.cfg.Cgroup)
		}
	})
	return w
}

type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	if os.Getenv("SANDBOXFORGE_TEST_LOG") != "" {
		os.Stderr.Write(p)
	}
	return len(p), nil
}

func (w *world) boot() {
	a, err := agent.New(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.agent = a
	w.mu.Unlock()
}

func (w *world) shutdown() {
	w.stop()
	w.serve.Wait()
	w.agent.Close()
}

// dial makes a stream to the agent, as opening a virtio port's socket does.
func (w *world) dial(context.Context) (io.ReadWriteCloser, error) {
	w.mu.Lock()
	a, wrap := w.agent, w.wrap
	w.mu.Unlock()
	host, guestEnd := socketPair(w.t)
	w.serve.Go(func() { a.Serve(w.ctx, link.NewListener(guestEnd)) })
	if wrap != nil {
		return wrap(host), nil
	}
	return host, nil
}

func socketPair(t testing.TB) (net.Conn, net.Conn) {
	t.Helper()
	a, b := net.Pipe()
	return a, b
}

func (w *world) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	w.t.Cleanup(cancel)
	if err := w.link.WaitConnected(ctx); err != nil {
		w.t.Fatal(err)
	}
	return ctx
}

// run runs a command and returns its output.
func (w *world) run(spec guest.Spec) (stdout, stderr string, p guest.Process) {
	w.t.Helper()
	var out, errb bytes.Buffer
	p, err := w.client.Run(w.context(), guest.NewID("t-"), spec, collect(&out, &errb))
	if err != nil {
		w.t.Fatal(err)
	}
	return out.String(), errb.String(), p
}

func collect(out, errb *bytes.Buffer) func(guest.Output) {
	return func(o guest.Output) {
		if o.Stream == guest.Stderr {
			errb.Write(o.Data)
		} else {
			out.Write(o.Data)
		}
	}
}

// eventually waits for a state that no event announces.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// running lists processes whose command line contains a marker.
func running(marker string) []string {
	var out []string
	entries, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, e := range entries {
		b, _ := os.ReadFile(e)
		if strings.Contains(string(b), marker) {
			out = append(out, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return out
}

func diskUsage(t testing.TB, path string) int64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// reboot replaces the agent by a new one on the same directories.
func (w *world) reboot() {
	w.link.Pause()
	w.shutdown()
	w.ctx, w.stop = context.WithCancel(context.Background())
	w.boot()
	w.link.Resume()
}
