package qemu

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/backend/backendtest"
	"sandboxforge/internal/image"
)

func TestMain(m *testing.M) { backendtest.Main(m, open) }

func open(raw json.RawMessage) (backend.Backend, error) {
	var c testConfig
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	return c.open()
}

// testConfig is a Config with the one image of the tests.
type testConfig struct {
	Config
	Image Image
	Blind bool // of the backend
}

func (c testConfig) open() (*Backend, error) {
	c.Images = oneImage{c.Image}
	b, err := New(c.Config)
	if err == nil {
		b.blind = c.Blind
	}
	return b, err
}

type oneImage struct{ img Image }

func (o oneImage) Find(string, string) (Image, error) { return o.img, nil }

// subject is the image that VMs of the tests run, and how its agent is asked.
type subject struct {
	image Image
	wait  func(ctx context.Context, stream io.ReadWriteCloser) (string, error)
	// polite: it powers off when the power button is pressed.
	polite bool
}

// testGuest finds the guest once.
var testGuest = sync.OnceValues(func() (subject, error) {
	dir := os.Getenv("SANDBOX_IMAGE_DIR")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", ".build", "images")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return subject{}, err
	}
	img, err := image.Store{Dir: dir}.Find(image.MinimalName)
	if err != nil {
		return subject{}, fmt.Errorf("%w\nbuild it with: SANDBOX_IMAGE_DIR=%s bin/sandboxforge image build %s", err, dir, image.MinimalName)
	}
	return subject{image: Image{
		Name: img.Name, Arch: img.Arch, Digest: img.Digest,
		Kernel: img.Kernel, Initrd: img.Initrd, Root: img.Root, Cmdline: img.Cmdline,
	}, wait: waitAgent}, nil
})

// cacheDir is shared by all tests of a run, so that one trial of accelerators
// serves them all.
var cacheDir = sync.OnceValue(func() string {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("sandboxforge-test-accel-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		panic(err)
	}
	return dir
})

// newConfig is a Config with directories of its own.
func newConfig(t *testing.T) testConfig {
	t.Helper()
	g, err := testGuest()
	if err != nil {
		t.Fatal(err)
	}
	run, err := os.MkdirTemp("", "sf") // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	state := t.TempDir()
	t.Cleanup(func() { // before state is removed: nothing may be left running
		for _, pid := range qemuProcesses(t, state) {
			t.Errorf("QEMU with pid %d is left", pid)
			syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	c := Config{
		StateDir: state, RunDir: run, CacheDir: cacheDir(), Accel: os.Getenv("SANDBOX_ACCEL"),
		Images: oneImage{g.image},
		Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})),
	}
	return testConfig{Config: c, Image: g.image}
}

func newBackend(t *testing.T) (*Backend, testConfig) { return openBackend(t, newConfig(t)) }

func openBackend(t *testing.T, c testConfig) (*Backend, testConfig) {
	t.Helper()
	b, err := c.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteAll(t, b) })
	return b, c
}

func deleteAll(t *testing.T, b *Backend) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
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

// qemuProcesses are the processes whose working directory is a VM's under
// state, the deleted ones included.
func qemuProcesses(t *testing.T, state string) (pids []int) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		cwd, err := os.Readlink(l)
		if err == nil && len(cwd) > len(state) && cwd[:len(state)+1] == state+"/" {
			var pid int
			fmt.Sscanf(l, "/proc/%d/cwd", &pid)
			pids = append(pids, pid)
		}
	}
	return pids
}

func spec(name string) backend.Spec {
	return backend.Spec{Name: name, CPUs: 1, MemoryMiB: 256, DiskBytes: 1 << 30, Arch: runtime.GOARCH, Hostname: name}
}

func harness(t *testing.T) *backendtest.Harness { return harnessOf(t, newConfig(t)) }

// blindHarness is of a backend that cannot read QEMU's memory.
func blindHarness(t *testing.T) *backendtest.Harness {
	c := newConfig(t)
	c.Blind = true
	return harnessOf(t, c)
}

func harnessOf(t *testing.T, c testConfig) *backendtest.Harness {
	b, c := openBackend(t, c)
	g, _ := testGuest()
	t.Logf("host boot id %s", hostBootID())
	return &backendtest.Harness{
		Backend: b, Config: c, Open: open, StateDir: c.StateDir, Spec: spec,
		HalfMake: func(t *testing.T, name string) {
			dir := filepath.Join(c.StateDir, name)
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, diskFile), []byte("QFI\xfb"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		Kill: func(t *testing.T, info backend.Info) {
			t.Logf("kill -9 %d", info.PID)
			if info.PID <= 1 {
				t.Fatalf("no pid in %+v", info)
			}
			if err := syscall.Kill(info.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		WaitGone:     func(ctx context.Context, info backend.Info) error { return waitGone(ctx, info.PID) },
		WaitAgent:    g.wait,
		BootDeadline: 3 * time.Minute,
		Polite:       g.polite,
		Remember:     remember,
		Recall:       recall,
	}
}

// waitGone blocks until a process has ended, on the kernel's word.
func waitGone(ctx context.Context, pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	return waitPidfd(ctx, f)
}

func TestContract(t *testing.T) { backendtest.Suite(t, harness) }

// TestContractOfTransfers: states are the same where QEMU has to send the
// memory.
func TestContractOfTransfers(t *testing.T) { backendtest.StateSuite(t, blindHarness) }
