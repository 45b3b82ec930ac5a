package backendtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// The cases in which nothing runs.

func probe(t *testing.T, h *Harness) {
	for range 2 { // the second answers from memory
		r, err := h.Backend.Probe(within(t, 3*time.Minute), func(stage, message string) { t.Logf("%s: %s", stage, message) })
		ok(t, err)
		t.Logf("%+v", r)
		if !r.Usable || r.Version == "" {
			t.Fatalf("not usable: %+v", r)
		}
		for _, p := range r.Problems {
			if p.Fatal {
				t.Errorf("usable with a fatal problem %+v", p)
			}
			if p.What == "" || p.Fix == "" {
				t.Errorf("problem without a remedy: %+v", p)
			}
		}
	}
}

func createIdempotent(t *testing.T, h *Harness) {
	s := h.Spec("vm-1")
	for range 3 {
		ok(t, h.Backend.Create(within(t, limit), s))
	}
	ok(t, h.again(t).Create(within(t, limit), s))
	info := wantState(t, h.Backend, "vm-1", backend.Stopped)
	if info.PID != 0 {
		t.Errorf("a VM that was never started has the pid %d", info.PID)
	}
	all, err := h.Backend.List(within(t, limit))
	ok(t, err)
	if len(all) != 1 || all[0].Name != "vm-1" {
		t.Errorf("List shows %+v", all)
	}
	ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
	wantGone(t, h, "vm-1")
	ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
	create(t, h, "vm-1") // the name can be used again
}

func createExists(t *testing.T, h *Harness) {
	create(t, h, "vm-1")
	other := h.Spec("vm-1")
	other.CPUs++
	wantKind(t, h.Backend.Create(within(t, limit), other), backend.ErrExists)
	wantState(t, h.Backend, "vm-1", backend.Stopped)
	ok(t, h.Backend.Create(within(t, limit), h.Spec("vm-1")))
}

func createCancelled(t *testing.T, h *Harness) {
	// From cancelled before the call to cancelled when it may be done.
	for _, d := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond, 8 * time.Millisecond, 15 * time.Millisecond, 25 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond} {
		ctx, cancel := context.WithCancel(t.Context())
		timer := time.AfterFunc(d, cancel)
		if d == 0 {
			cancel()
		}
		err := h.Backend.Create(ctx, h.Spec("vm-1"))
		timer.Stop()
		cancel()
		if err == nil {
			if d == 0 {
				t.Fatal("Create succeeded under a cancelled context")
			}
			wantState(t, h.Backend, "vm-1", backend.Stopped)
			ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
			continue
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled after %s: %v", d, err)
		}
		wantGone(t, h, "vm-1")
	}
}

func createConcurrent(t *testing.T, h *Harness) {
	var wg sync.WaitGroup
	for i := range 6 {
		b := h.again(t)
		s := h.Spec("vm-1")
		s.CPUs += i % 2
		wg.Go(func() {
			if err := b.Create(within(t, limit), s); err != nil && !errors.Is(err, backend.ErrExists) {
				t.Errorf("create: %v", err)
			}
		})
	}
	wg.Wait()
	wantState(t, h.Backend, "vm-1", backend.Stopped)
}

// hostile are names that would be paths, arguments, options or patterns.
var hostile = []string{
	"", ".", "..", "../x", "a/b", "/etc", `a\b`, "-rf", "--help", "a b", "a,b", "a\x00b", "a\nb", "A", "é", "a_b", "a.b",
	"$(x)", "`x`", "*", "%s", "~", "a=b", strings.Repeat("a", 41), strings.Repeat("a", 5000), "\xff", ".operations", "con:",
}

func hostileNames(t *testing.T, h *Harness) {
	ctx := within(t, limit)
	for _, name := range hostile {
		s := h.Spec("x")
		s.Name = name
		_, startErr := h.Backend.Start(ctx, name, backend.StartOptions{})
		_, inspectErr := h.Backend.Inspect(ctx, name)
		for call, err := range map[string]error{
			"Create": h.Backend.Create(ctx, s), "Start": startErr, "Inspect": inspectErr, "Delete": h.Backend.Delete(ctx, name),
		} {
			if !fault.Is(err, fault.InvalidArgument) {
				t.Errorf("%s(%.50q): %v, want %s", call, name, err, fault.InvalidArgument)
			}
		}
	}
	if all, err := h.Backend.List(ctx); err != nil || len(all) != 0 {
		t.Errorf("List: %+v, %v", all, err)
	}
	longest := strings.Repeat("a", 40)
	create(t, h, longest)
	start(t, h, longest)
}

func hostileSpecs(t *testing.T, h *Harness) {
	for what, change := range map[string]func(*backend.Spec){
		"no CPUs": func(s *backend.Spec) { s.CPUs = 0 }, "many CPUs": func(s *backend.Spec) { s.CPUs = 1 << 20 },
		"no memory": func(s *backend.Spec) { s.MemoryMiB = 0 }, "negative memory": func(s *backend.Spec) { s.MemoryMiB = -5 },
		"all memory": func(s *backend.Spec) { s.MemoryMiB = 1 << 60 }, "negative disk": func(s *backend.Spec) { s.DiskBytes = -1 },
		"strange architecture":    func(s *backend.Spec) { s.Arch = "vax" },
		"host name with a space":  func(s *backend.Spec) { s.Hostname = "a init=/bin/sh" },
		"host name with a dash":   func(s *backend.Spec) { s.Hostname = "-a" },
		"host name with new line": func(s *backend.Spec) { s.Hostname = "a\n" },
	} {
		s := h.Spec("vm-1")
		change(&s)
		if err := h.Backend.Create(within(t, limit), s); !fault.Is(err, fault.InvalidArgument) {
			t.Errorf("%s: %v, want %s", what, err, fault.InvalidArgument)
		}
	}
	wantGone(t, h, "vm-1")
}

func missing(t *testing.T, h *Harness) {
	ctx := within(t, limit)
	ok(t, h.Backend.Delete(ctx, "nobody"))
	_, err := h.Backend.Inspect(ctx, "nobody")
	wantKind(t, err, backend.ErrNotFound)
	_, err = h.Backend.Start(ctx, "nobody", backend.StartOptions{})
	wantKind(t, err, backend.ErrNotFound)
	wantGone(t, h, "nobody")
}

func listInvents(t *testing.T, h *Harness) {
	if h.StateDir == "" {
		t.Skip("this backend keeps VMs in no directory")
	}
	create(t, h, "vm-1")
	for _, d := range []string{"UPPER", ".hidden", "with space", "lost+found"} {
		ok(t, os.MkdirAll(filepath.Join(h.StateDir, d), 0o700))
	}
	ok(t, os.WriteFile(filepath.Join(h.StateDir, "a-file"), []byte("x"), 0o600))
	outside := t.TempDir()
	ok(t, os.WriteFile(filepath.Join(outside, "precious"), []byte("x"), 0o600))
	ok(t, os.Symlink(outside, filepath.Join(h.StateDir, "a-link")))
	all, err := h.Backend.List(within(t, limit))
	ok(t, err)
	if len(all) != 1 || all[0].Name != "vm-1" {
		t.Errorf("List shows %+v, want vm-1 alone", all)
	}
	if _, err := h.Backend.Inspect(within(t, limit), "a-link"); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("Inspect of a link: %v", err)
	}
	h.Backend.Delete(within(t, limit), "a-link")
	if _, err := os.Stat(filepath.Join(outside, "precious")); err != nil {
		t.Errorf("Delete followed a link: %v", err)
	}
}

func halfMade(t *testing.T, h *Harness) {
	h.HalfMake(t, "vm-1")
	info := wantState(t, h.Backend, "vm-1", backend.Broken)
	if info.Detail == "" {
		t.Error("a broken VM without a reason")
	}
	all, err := h.Backend.List(within(t, limit))
	ok(t, err)
	if len(all) != 1 || all[0].State != backend.Broken {
		t.Errorf("List shows %+v", all)
	}
	if m, err := h.Backend.Start(within(t, limit), "vm-1", backend.StartOptions{}); err == nil {
		m.Stop(within(t, limit), 0)
		t.Error("a half-made VM was started")
	}
	ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
	wantGone(t, h, "vm-1")
	create(t, h, "vm-1")
	wantState(t, h.Backend, "vm-1", backend.Stopped)
}
