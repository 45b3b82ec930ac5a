package fake

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/backend/backendtest"
)

func TestMain(m *testing.M) { backendtest.Main(m, open) }

// open makes a fake whose guests say who they are on every stream.
func open(raw json.RawMessage) (backend.Backend, error) {
	var dir string
	if err := json.Unmarshal(raw, &dir); err != nil {
		return nil, err
	}
	id := rand.Text()
	mem := &memory{m: map[string]string{}}
	return New(dir, Options{Console: []byte("booted\n"), States: true, Memory: mem, Serve: func(name string, rw io.ReadWriteCloser) {
		fmt.Fprintf(rw, "%s of %s\n", name, id)
		for in := bufio.NewScanner(rw); in.Scan(); {
			if text, set := strings.CutPrefix(in.Text(), "set "); set {
				mem.Load(name, []byte(text))
			}
			fmt.Fprintf(rw, "%s\n", strings.TrimRight(string(mem.Save(name)), "\x00"))
		}
	}})
}

// memory is what the guests of one Backend were told to remember.
type memory struct {
	mu sync.Mutex
	m  map[string]string
}

func (m *memory) Save(name string) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := make([]byte, 4096)
	copy(b, m.m[name])
	return b
}

func (m *memory) Load(name string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.m[name] = string(data)
}

// tell says one line to a guest and returns its answer.
func tell(rw io.ReadWriter, line string) (string, error) {
	r := bufio.NewReader(rw)
	if _, err := r.ReadString('\n'); err != nil { // its greeting
		return "", err
	}
	if _, err := fmt.Fprintln(rw, line); err != nil {
		return "", err
	}
	answer, err := r.ReadString('\n')
	return strings.TrimSpace(answer), err
}

func harness(t *testing.T) *backendtest.Harness {
	dir := t.TempDir()
	raw, err := json.Marshal(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := open(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &backendtest.Harness{
		Backend: b, Config: dir, Open: open, StateDir: dir, BootDeadline: 20 * time.Second, Polite: true,
		Spec: func(name string) backend.Spec {
			return backend.Spec{Name: name, CPUs: 1, MemoryMiB: 64, Hostname: name}
		},
		HalfMake: func(t *testing.T, name string) {
			if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
				t.Fatal(err)
			}
		},
		Kill: func(t *testing.T, info backend.Info) {
			if err := End(t.Context(), dir, info.Name, backend.Exit{Reason: backend.ExitHypervisorDied}); err != nil {
				t.Fatal(err)
			}
		},
		WaitGone: func(ctx context.Context, info backend.Info) error { return WaitEnd(ctx, dir, info.Name) },
		WaitAgent: func(ctx context.Context, rw io.ReadWriteCloser) (string, error) {
			line, err := bufio.NewReader(rw).ReadString('\n')
			return strings.TrimSpace(line), err
		},
		Remember: func(_ context.Context, rw io.ReadWriteCloser, text string) error {
			_, err := tell(rw, "set "+text)
			return err
		},
		Recall: func(_ context.Context, rw io.ReadWriteCloser) (string, error) { return tell(rw, "get") },
	}
}

func TestContract(t *testing.T) { backendtest.Suite(t, harness) }

func spec(name string) backend.Spec { return backend.Spec{Name: name, CPUs: 1, MemoryMiB: 64} }

func TestHooksFailAndHang(t *testing.T) {
	boom := errors.New("boom")
	fail := func(context.Context, string) error { return boom }
	hang := func(ctx context.Context, _ string) error { <-ctx.Done(); return context.Cause(ctx) }
	dir := t.TempDir()
	good, err := New(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		hook func(context.Context, string) error
		want error
	}{"fail": {fail, boom}, "hang": {hang, context.DeadlineExceeded}} {
		bad, err := New(dir, Options{Hooks: Hooks{Create: c.hook, Start: c.hook, Inspect: c.hook, Delete: c.hook}})
		if err != nil {
			t.Fatal(err)
		}
		for method, act := range map[string]func(context.Context) error{
			"Create":  func(ctx context.Context) error { return bad.Create(ctx, spec("x")) },
			"Start":   func(ctx context.Context) error { _, err := bad.Start(ctx, "x", backend.StartOptions{}); return err },
			"Inspect": func(ctx context.Context) error { _, err := bad.Inspect(ctx, "x"); return err },
			"Delete":  func(ctx context.Context) error { return bad.Delete(ctx, "x") },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			if err := act(ctx); !errors.Is(err, c.want) {
				t.Errorf("%s that should %s: %v", method, name, err)
			}
			cancel()
		}
	}
	if _, err := good.Inspect(t.Context(), "x"); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("a failed create left something: %v", err)
	}
}

func TestEndAndBootFailure(t *testing.T) {
	dir := t.TempDir()
	b, err := New(dir, Options{Hooks: Hooks{Boot: func(_ context.Context, _ string, o backend.StartOptions) error {
		if o.Cautious {
			return nil
		}
		return errors.New("panic")
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Create(t.Context(), spec("x")); err != nil {
		t.Fatal(err)
	}
	for _, cautious := range []bool{false, true} {
		m, err := b.Start(t.Context(), "x", backend.StartOptions{Cautious: cautious})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if cautious {
			cancel()
		}
		err = m.(backend.BootWatcher).WatchBoot(ctx)
		cancel()
		if got := errors.Is(err, backend.ErrBootFailed); got == cautious {
			t.Errorf("cautious %v: %v", cautious, err)
		}
		want := backend.Exit{Reason: backend.ExitGuestPanic, Detail: "d"}
		if err := End(t.Context(), dir, "x", want); err != nil {
			t.Fatal(err)
		}
		<-m.Done()
		if e := m.Exit(); e.Reason != want.Reason || e.Detail != want.Detail {
			t.Errorf("exit %+v", e)
		}
		if err := m.(backend.BootWatcher).WatchBoot(t.Context()); !errors.Is(err, backend.ErrBootFailed) {
			t.Errorf("watching an ended VM: %v", err)
		}
		if err := End(t.Context(), dir, "x", want); !errors.Is(err, backend.ErrNotRunning) {
			t.Errorf("End of an ended VM: %v", err)
		}
	}
}
