package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sandboxforge/internal/fault"
)

// host stands in for mmdebstrap; everything else is run for real.
type host struct {
	archive []byte
	calls   []string
	// before and after see the number of each call, counted from 0.
	before, after func(n int, program string) error
}

func (h *host) run(ctx context.Context, c child) error {
	n := len(h.calls)
	program := filepath.Base(c.argv[0])
	h.calls = append(h.calls, program)
	if h.before != nil {
		if err := h.before(n, program); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var err error
	if program == "mmdebstrap" {
		if _, err = c.stdout.Write(h.archive); err == nil && c.line != nil {
			c.line("I: creating tarball...")
		}
	} else {
		err = run(ctx, c)
	}
	if err == nil && h.after != nil {
		err = h.after(n, program)
	}
	return err
}

func testBuilder(t testing.TB, dir string, h *host) *builder {
	b := newBuilder(Store{Dir: dir}, testRecipe(), BuildOptions{})
	b.run, b.scratch = h.run, filepath.Join(dir, ".scratch")
	b.free = func(string) (uint64, error) { return 1 << 40, nil }
	if b.tools.find("mkfs.ext4") == "" || b.tools.find("e2fsck") == "" {
		t.Fatal("these tests make real file systems: install e2fsprogs")
	}
	// A machine that only runs these tests need not have mmdebstrap.
	fake := t.TempDir()
	for _, tool := range []string{"mmdebstrap", "apt-get", "dpkg"} {
		if err := os.WriteFile(filepath.Join(fake, tool), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.tools.path = append([]string{fake}, b.tools.path...)
	return b
}

// remains lists what a build left in the store besides locks and caches.
func remains(t testing.TB, dir string) []string {
	t.Helper()
	var left []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, p)
		if err == nil && !d.IsDir() && !strings.HasPrefix(rel, lockDir) && !strings.HasPrefix(rel, packagesDir) {
			left = append(left, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return left
}

func noImage(t testing.TB, dir string) {
	t.Helper()
	images, err := Store{Dir: dir}.List()
	if err != nil || len(images) != 0 {
		t.Fatalf("images %v, %v; want none", images, err)
	}
	if _, err := (Store{Dir: dir}).Lookup(testRecipe()); !fault.Is(err, fault.ImageNotFound) {
		t.Fatalf("Lookup: %v", err)
	}
}

func TestBuildListFindRemove(t *testing.T) {
	dir := t.TempDir()
	h := &host{archive: packageArchive(t)}
	b := testBuilder(t, dir, h)
	last := -1.0
	b.opt.Progress = func(p Progress) {
		if p.Fraction >= 0 && p.Fraction < last {
			t.Errorf("progress went from %.2f back to %.2f", last, p.Fraction)
		}
		last = p.Fraction
	}
	img, err := b.build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if last != 1 {
		t.Errorf("progress ended at %v", last)
	}
	if got := strings.Join(h.calls, " "); got != "mmdebstrap tar mkfs.ext4 e2fsck" {
		t.Errorf("ran %s", got)
	}
	if kernel, err := os.ReadFile(img.Kernel); err != nil || string(kernel) != elf {
		t.Errorf("kernel %q, %v", kernel, err)
	}
	if err := img.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	if img.Cmdline == "" || img.Manifest.KernelRelease != testKernel || img.Manifest.Root.Size != 160<<20 {
		t.Errorf("manifest: %+v", img.Manifest)
	}

	// Again: nothing runs. With another agent: only the second stage.
	h.calls = nil
	if again, err := b.build(t.Context()); err != nil || again.Dir != img.Dir || len(h.calls) != 0 {
		t.Errorf("second build: %v, ran %v", err, h.calls)
	}
	b.recipe.Agent, last = []byte("agent 2"), -1
	next, err := b.build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(h.calls, " "); got != "tar mkfs.ext4 e2fsck" {
		t.Errorf("with a new agent ran %s", got)
	}

	s := Store{Dir: dir}
	if images, err := s.List(); err != nil || len(images) != 2 || images[0].Digest != next.Digest {
		t.Errorf("List: %v, %v", images, err)
	}
	if got, err := s.FindArch("minimal", "amd64"); err != nil || got.Digest != next.Digest {
		t.Errorf("Find: %v, %v", got, err)
	}
	if got, err := s.FindArch("minimal@"+img.Digest[:8], "amd64"); err != nil || got.Digest != img.Digest {
		t.Errorf("Find by digest: %v, %v", got, err)
	}
	for _, name := range []string{"", "default", "minimal@ffffffffffff", "nonesuch"} {
		if _, err := s.FindArch(name, "amd64"); !fault.Is(err, fault.ImageNotFound) || len(fault.From(err).NextSteps) == 0 {
			t.Errorf("Find(%q): %v", name, err)
		}
	}
	if _, err := s.FindArch("nonesuch", "amd64"); !slices.Equal(fault.From(err).NextSteps, []string{"build it: `sandboxforge image build --as nonesuch`, choose one of: minimal, or leave vm.image out"}) {
		t.Errorf("what to do: %q", fault.From(err).NextSteps)
	}
	held := func(*Image) (string, error) { return "instance i-1", nil }
	if err := s.Remove(t.Context(), img, held); err == nil || !strings.Contains(err.Error(), "i-1") {
		t.Errorf("an image in use was removed: %v", err)
	}
	for range 2 {
		if err := s.Remove(t.Context(), img, nil); err != nil {
			t.Error(err)
		}
	}
	if images, _ := s.List(); len(images) != 1 {
		t.Errorf("after Remove: %d images", len(images))
	}
}

func TestDamageIsNoticed(t *testing.T) {
	dir := t.TempDir()
	img, err := testBuilder(t, dir, &host{archive: packageArchive(t)}).build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(img.Root, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("x"), 9<<20); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := img.Verify(t.Context()); err == nil {
		t.Error("a changed byte was not noticed")
	}
	if err := os.Truncate(img.Root, 1<<20); err != nil {
		t.Fatal(err)
	}
	noImage(t, dir)
}

// Each stage fails or is cancelled once: no image, no remains, and the next
// build succeeds.
func TestStagesFailAndAreCancelled(t *testing.T) {
	for n, program := range []string{"mmdebstrap", "tar", "mkfs.ext4", "e2fsck"} {
		for _, cancelled := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/cancelled=%v", program, cancelled), func(t *testing.T) {
				dir := t.TempDir()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				h := &host{archive: packageArchive(t)}
				h.after = func(i int, _ string) error {
					if i != n {
						return nil
					}
					if cancelled {
						cancel()
						return ctx.Err()
					}
					return errors.New("broken on purpose")
				}
				_, err := testBuilder(t, dir, h).build(ctx)
				want := fault.Internal
				if cancelled {
					want = fault.Cancelled
				}
				if !fault.Is(err, want) {
					t.Fatalf("got %v", err)
				}
				noImage(t, dir)
				if left := remains(t, dir); len(left) != 0 {
					t.Errorf("left %v", left)
				}
				h.after = nil
				if _, err := testBuilder(t, dir, h).build(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

const killEnv = "SANDBOXFORGE_TEST_KILL_BUILD"

// A build that is killed with SIGKILL right before or after any of its steps
// leaves nothing that is taken for an image, and the next build cleans up.
func TestKilledBuild(t *testing.T) {
	if where := os.Getenv(killEnv); where != "" {
		dir, step, _ := strings.Cut(where, ":")
		at, _ := strconv.Atoi(step)
		die := func(point int) error {
			if point == at {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
			return nil
		}
		h := &host{archive: packageArchive(t)}
		h.before = func(n int, _ string) error { return die(2 * n) }
		h.after = func(n int, _ string) error { return die(2*n + 1) }
		b := testBuilder(t, dir, h)
		b.opt.Progress = func(p Progress) {
			if p.Stage == "publish" && p.Fraction < 1 {
				_ = die(8)
			}
		}
		_, err := b.build(t.Context())
		t.Fatalf("the build survived: %v", err)
	}
	for point := range 9 {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledBuild$")
		// What it cannot remove any more goes with the parent's.
		cmd.Env = append(os.Environ(), killEnv+"="+dir+":"+strconv.Itoa(point), "TMPDIR="+t.TempDir())
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("point %d: the child ended with %v\n%s", point, err, out)
		}
		noImage(t, dir)
		if left := remains(t, dir); point > 2 && len(left) == 0 {
			t.Errorf("point %d: the kill came too early to leave anything", point)
		}
		if _, err := testBuilder(t, dir, &host{archive: packageArchive(t)}).build(t.Context()); err != nil {
			t.Errorf("point %d: the next build failed: %v", point, err)
		}
		for _, left := range remains(t, dir) {
			if strings.HasPrefix(left, ".") {
				t.Errorf("point %d: the next build left %s", point, left)
			}
		}
	}
}

// The store is a file system that is too small for the image: a real full
// disk, so it needs root to mount it.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	for _, size := range []string{"64k", "400k"} {
		dir := t.TempDir()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
			t.Fatalf("cannot mount a small file system: %v", err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		})
		h := &host{archive: packageArchive(t)}
		b := testBuilder(t, dir, h)
		// Random bytes: nothing makes them small.
		b.recipe.Agent = make([]byte, 256<<10)
		for i := range b.recipe.Agent {
			b.recipe.Agent[i] = byte(i*i>>8 ^ i)
		}
		_, err := b.build(t.Context())
		if !fault.Is(err, fault.InsufficientDisk) {
			t.Errorf("%s: got %v", size, err)
		}
		noImage(t, dir)
		if left := remains(t, dir); len(left) != 0 {
			t.Errorf("%s: left %v", size, left)
		}
	}
}

func TestTooLittleDiskIsSaidBeforehand(t *testing.T) {
	h := &host{archive: packageArchive(t)}
	b := testBuilder(t, t.TempDir(), h)
	b.free = func(string) (uint64, error) { return 1 << 20, nil }
	if _, err := b.build(t.Context()); !fault.Is(err, fault.InsufficientDisk) || len(h.calls) != 0 {
		t.Errorf("got %v, ran %v", err, h.calls)
	}
}

func TestMissingTools(t *testing.T) {
	b := testBuilder(t, t.TempDir(), &host{})
	b.tools = toolbox{path: []string{t.TempDir(), "relative"}}
	_, err := b.build(t.Context())
	steps := strings.Join(fault.From(err).NextSteps, "\n")
	for _, want := range []string{"apt-get install mmdebstrap", "dnf install mmdebstrap", "pacman -S mmdebstrap", "e2fsprogs"} {
		if !strings.Contains(steps, want) {
			t.Errorf("%v: %q lacks %q", err, steps, want)
		}
	}
	if strings.Count(steps, "e2fsprogs") != 3 {
		t.Errorf("a package is named twice: %s", steps)
	}
}

func TestTwoBuildsOfOneImage(t *testing.T) {
	dir := t.TempDir()
	inside, goOn := make(chan struct{}), make(chan struct{})
	h := &host{archive: packageArchive(t)}
	h.before = func(n int, _ string) error {
		if n == 0 {
			close(inside)
			<-goOn
		}
		return nil
	}
	first := make(chan error, 1)
	go func() {
		_, err := testBuilder(t, dir, h).build(t.Context())
		first <- err
	}()
	<-inside
	second := &host{archive: packageArchive(t)}
	b := testBuilder(t, dir, second)
	b.opt.Progress = func(p Progress) {
		if strings.Contains(p.Message, "waiting") {
			close(goOn)
		}
	}
	_, err := b.build(t.Context())
	if err := errors.Join(err, <-first); err != nil {
		t.Fatal(err)
	}
	if len(second.calls) != 0 {
		t.Errorf("the second build ran %v", second.calls)
	}
}

func TestRunCancelEndsTheGroup(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	pids := make(chan int, 1)
	done := make(chan error, 1)
	go func() {
		// The leader exits on TERM; its child ignores that.
		done <- run(ctx, child{
			argv: []string{"/bin/sh", "-c", `(trap "" TERM; echo $$ >&2; exec sleep 1000) & trap "exit 3" TERM; wait`},
			line: func(s string) {
				pid, _ := strconv.Atoi(s)
				pids <- pid
			},
		})
	}()
	pid := <-pids
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	deadline := time.After(10 * time.Second)
	for syscall.Kill(-pid, 0) == nil { // until init reaps the orphan
		select {
		case <-deadline:
			t.Fatal("the child's group lives on")
		default:
			time.Sleep(time.Millisecond)
		}
	}
}

func TestRunQuotesTheEndOfTheMessages(t *testing.T) {
	err := run(t.Context(), child{argv: []string{"/bin/sh", "-c", "echo first >&2; echo E: last >&2; exit 4"}})
	if err == nil || !strings.Contains(err.Error(), "E: last") || !strings.Contains(err.Error(), "exit status 4") {
		t.Errorf("got %v", err)
	}
}
