package lima

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/backend/backendtest"
)

func TestMain(m *testing.M) { backendtest.Main(m, open) }

// standin is the stand-in's limactl, built once a run: it is started hundreds of
// times, and a test binary, with the race detector in it, takes its time.
var standin = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("sandboxforge-test-limactl-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	half := filepath.Join(dir, fmt.Sprintf("limactl.%d", os.Getpid()))
	if out, err := exec.Command("go", "build", "-o", half, "sandboxforge/test/limactl").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	path := filepath.Join(dir, "limactl")
	return path, os.Rename(half, path)
})

func open(raw json.RawMessage) (backend.Backend, error) {
	var c Config
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	return New(c)
}

// newConfig is a Config on the stand-in, in a directory of its own.
func newConfig(t *testing.T, env ...string) Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "sl") // sockets need a short path
	if err != nil {
		t.Fatal(err)
	}
	program, err := standin()
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		StateDir: filepath.Join(dir, "vms"), LimaHome: filepath.Join(dir, "h"), Limactl: program, Accel: "tcg",
		Env:       append([]string{"LIMACTL_STANDIN_AS_ROOT=1", "LIMACTL_STANDIN_DRIVER=fake"}, env...), // the last one counts
		GuestRoot: "/fake",
		Logger:    slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
	t.Cleanup(func() {
		for _, p := range processes(t, c.LimaHome) {
			t.Errorf("a process is left: %s", p)
		}
		os.RemoveAll(dir)
	})
	return c
}

// processes are those that have to do with a LIMA_HOME: host agents and
// hypervisors know it from their environment. A process that was killed may
// take a moment.
func processes(t *testing.T, home string) (left []string) {
	t.Helper()
	look := func() (all []string) {
		entries, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			b, err := os.ReadFile(e)
			if err != nil || !slices.Contains(strings.Split(string(b), "\x00"), "LIMA_HOME="+home) {
				continue
			}
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(e), "cmdline"))
			all = append(all, e+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
		return all
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if left = look(); len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}

func newBackend(t *testing.T, c Config) *Backend {
	t.Helper()
	b, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteAll(t, b) })
	return b
}

// deleteAll deletes what is left, bases too.
func deleteAll(t *testing.T, b *Backend) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	faults(t, b.cfg, "")
	entries, err := os.ReadDir(b.cfg.StateDir)
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	for _, e := range entries {
		if backend.CheckName(e.Name()) == nil && e.IsDir() {
			if err := b.Delete(ctx, e.Name()); err != nil {
				t.Error(err)
			}
		}
	}
	all, err := b.List(ctx)
	if err != nil {
		t.Error(err)
	}
	for _, i := range all {
		if err := b.Delete(ctx, i.Name); err != nil {
			t.Error(err)
		}
	}
}

// faults asks the stand-in for faults.
func faults(t *testing.T, c Config, text string) {
	t.Helper()
	if err := os.MkdirAll(c.LimaHome, 0o700); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(c.LimaHome, "_faults"), []byte(text), 0o600); err != nil {
		t.Error(err)
	}
}

func spec(name string) backend.Spec {
	return backend.Spec{Name: name, CPUs: 1, MemoryMiB: 512, DiskBytes: 12 << 30, Template: "template:docker", VMType: "qemu"}
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func newHarness(t *testing.T, c Config) *backendtest.Harness {
	t.Helper()
	b := newBackend(t, c)
	return &backendtest.Harness{
		Backend: b, Config: c, Open: open, StateDir: c.StateDir, Spec: spec,
		HalfMake:     func(t *testing.T, name string) { halfMake(t, b, name) },
		Kill:         func(t *testing.T, i backend.Info) { syscall.Kill(i.PID, syscall.SIGKILL) },
		WaitGone:     func(ctx context.Context, i backend.Info) error { return awaitGone(ctx, time.Minute, i.PID) },
		WaitAgent:    who,
		BootDeadline: time.Minute,
		Polite:       true,
	}
}

// halfMake leaves what a killed create leaves at its latest: an instance, and a
// record that is not whole.
func halfMake(t *testing.T, b *Backend, name string) {
	t.Helper()
	if err := b.Create(within(t, time.Minute), spec(name)); err != nil {
		t.Fatal(err)
	}
	r, err := b.record(name)
	if err != nil {
		t.Fatal(err)
	}
	r.Whole = false
	if err := writeJSON(filepath.Join(b.dir(name), vmFile), r); err != nil {
		t.Fatal(err)
	}
}

// who asks the fake guest who it is.
func who(ctx context.Context, stream io.ReadWriteCloser) (string, error) {
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	defer stop()
	if _, err := io.WriteString(stream, "who\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(stream).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("the fake guest: %w", err)
	}
	return strings.TrimSpace(line), nil
}
