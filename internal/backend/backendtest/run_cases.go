package backendtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/backend"
)

// The cases in which VMs run, without a look at their guests.

func wantExit(t *testing.T, m backend.Machine, reason string) {
	t.Helper()
	wait(t, "the VM's end", m.Done())
	e := m.Exit()
	t.Logf("exit: %+v", e)
	if e.Reason != reason || e.At.IsZero() {
		t.Errorf("the VM ended as %+v, want %q", e, reason)
	}
	_, err := m.DialAgent(within(t, limit))
	wantKind(t, err, backend.ErrNotRunning)
	ok(t, m.Stop(within(t, limit), time.Second)) // stopping an ended VM succeeds
}

func startRunning(t *testing.T, h *Harness) {
	create(t, h, "vm-1")
	m := start(t, h, "vm-1")
	info := wantState(t, h.again(t), "vm-1", backend.Running)
	if mine := m.Info(); mine.State != backend.Running || mine.PID != info.PID || mine.Name != info.Name {
		t.Errorf("Machine.Info %+v, Inspect %+v", mine, info)
	}
	for _, b := range []backend.Backend{h.Backend, h.again(t)} {
		_, err := b.Start(within(t, limit), "vm-1", backend.StartOptions{})
		wantKind(t, err, backend.ErrRunning)
	}
	// Asking does not disturb, and creating it again changes nothing.
	ok(t, h.Backend.Create(within(t, limit), h.Spec("vm-1")))
	wantState(t, h.Backend, "vm-1", backend.Running)
	select {
	case <-m.Done():
		t.Fatalf("the VM ended: %+v", m.Exit())
	default:
	}
}

func startConcurrent(t *testing.T, h *Harness) {
	create(t, h, "vm-1")
	var mu sync.Mutex
	var won []backend.Machine
	var wg sync.WaitGroup
	for range 6 {
		b := h.again(t)
		wg.Go(func() {
			for range 3 { // asking meanwhile must not make a start fail
				b.Inspect(within(t, limit), "vm-1")
			}
			m, err := b.Start(within(t, limit), "vm-1", backend.StartOptions{})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, m)
			} else if !errors.Is(err, backend.ErrRunning) {
				t.Errorf("start: %v", err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Errorf("%d starts of one VM won", len(won))
	}
	for _, m := range won {
		ok(t, m.Stop(within(t, limit), 0))
	}
}

func startTwoProcesses(t *testing.T, h *Harness) {
	create(t, h, "vm-1")
	first := h.inOtherProcess(t, "start", "vm-1")
	if first.answer.Kind != "" {
		t.Fatalf("start in another process: %+v", first.answer)
	}
	second := h.inOtherProcess(t, "start", "vm-1")
	if second.answer.Kind != "running" {
		t.Errorf("start in a third process: %+v, want the kind running", second.answer)
	}
	_, err := h.Backend.Start(within(t, limit), "vm-1", backend.StartOptions{})
	wantKind(t, err, backend.ErrRunning)
	info := wantState(t, h.Backend, "vm-1", backend.Running)
	if info.PID != first.answer.Info.PID {
		t.Errorf("pid %d here, %d there", info.PID, first.answer.Info.PID)
	}
	ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
	wantGone(t, h, "vm-1")
}

func startCancelled(t *testing.T, h *Harness) {
	create(t, h, "vm-1")
	for _, d := range []time.Duration{0, 2 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond, 80 * time.Millisecond} {
		ctx, cancel := context.WithCancel(t.Context())
		timer := time.AfterFunc(d, cancel)
		if d == 0 {
			cancel()
		}
		m, err := h.Backend.Start(ctx, "vm-1", backend.StartOptions{})
		cancel()
		timer.Stop()
		switch {
		case err == nil && d == 0:
			t.Error("started under a cancelled context")
			fallthrough
		case err == nil:
			// The context bounds the start only.
			select {
			case <-m.Done():
				t.Errorf("the VM ended with the start's context: %+v", m.Exit())
			default:
			}
			ok(t, m.Stop(within(t, limit), 0))
		case !errors.Is(err, context.Canceled):
			t.Errorf("cancelled after %s: %v", d, err)
		}
		wantState(t, h.Backend, "vm-1", backend.Stopped)
	}
}

func stopForced(t *testing.T, h *Harness) {
	create(t, h, "vm-1")
	for range 2 {
		m := start(t, h, "vm-1")
		if e := m.Exit(); e != (backend.Exit{}) {
			t.Errorf("a running VM has the exit %+v", e)
		}
		ok(t, m.Stop(within(t, limit), 0))
		wantExit(t, m, backend.ExitStopped)
		if i := m.Info(); i.State != backend.Stopped {
			t.Errorf("Info after the end: %+v", i)
		}
		wantState(t, h.again(t), "vm-1", backend.Stopped)
	}
	// A context that is over already means force, not failure.
	m := start(t, h, "vm-1")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	ok(t, m.Stop(over, time.Hour))
	wantExit(t, m, backend.ExitStopped)
}

func killed(t *testing.T, h *Harness) {
	create(t, h, "vm-1")
	// At once, and at some moments of the boot.
	for _, d := range []time.Duration{0, 50 * time.Millisecond, 700 * time.Millisecond} {
		m := start(t, h, "vm-1")
		select {
		case <-m.Done():
			t.Fatalf("the VM ended by itself: %+v", m.Exit())
		case <-time.After(d):
		}
		info := m.Info()
		h.Kill(t, info)
		ok(t, h.WaitGone(within(t, limit), info))
		wantState(t, h.again(t), "vm-1", backend.Stopped) // at once
		wantExit(t, m, backend.ExitHypervisorDied)
	}
	m := start(t, h, "vm-1")
	info := m.Info()
	h.Kill(t, info)
	ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
	wantGone(t, h, "vm-1")
	wait(t, "the VM's end", m.Done())
}

func deleteElsewhere(t *testing.T, h *Harness) {
	create(t, h, "vm-1")
	m := start(t, h, "vm-1")
	info := m.Info()
	p := h.inOtherProcess(t, "delete", "vm-1")
	if p.answer.Kind != "" {
		t.Fatalf("delete in another process: %+v", p.answer)
	}
	ok(t, h.WaitGone(within(t, limit), info))
	wantGone(t, h, "vm-1")
	wantExit(t, m, backend.ExitStopped)
	create(t, h, "vm-1")
	start(t, h, "vm-1")
}

func deleteStorm(t *testing.T, h *Harness) {
	const rounds = 8
	var wg sync.WaitGroup
	worker := func(act func(b backend.Backend, ctx context.Context) error) {
		b := h.again(t)
		wg.Go(func() {
			for range rounds {
				time.Sleep(rand.N(20 * time.Millisecond)) // spreads the calls; nothing is awaited
				if err := act(b, within(t, limit)); err != nil {
					t.Errorf("in the storm: %v", err)
				}
			}
		})
	}
	worker(func(b backend.Backend, ctx context.Context) error { return b.Create(ctx, h.Spec("vm-1")) })
	worker(func(b backend.Backend, ctx context.Context) error { return b.Create(ctx, h.Spec("vm-1")) })
	worker(func(b backend.Backend, ctx context.Context) error { return b.Delete(ctx, "vm-1") })
	worker(func(b backend.Backend, ctx context.Context) error {
		_, err := b.List(ctx)
		return err
	})
	started := 0
	worker(func(b backend.Backend, ctx context.Context) error {
		m, err := b.Start(ctx, "vm-1", backend.StartOptions{})
		if err != nil {
			return nil // missing, half-made, or deleted under its hands
		}
		started++
		return m.Stop(ctx, 0)
	})
	wg.Wait()
	t.Logf("%d starts came through", started)
	ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
	wantGone(t, h, "vm-1")
}

func diesWithOwner(t *testing.T, h *Harness) {
	if !h.Backend.Capabilities().DiesWithOwner {
		t.Skip("VMs of this backend do not die with their owner")
	}
	create(t, h, "vm-1")
	p := h.inOtherProcess(t, "start", "vm-1")
	if p.answer.Kind != "" {
		t.Fatalf("start in another process: %+v", p.answer)
	}
	info := wantState(t, h.Backend, "vm-1", backend.Running)
	p.kill()
	ok(t, h.WaitGone(within(t, limit), info))
	t.Logf("the owner (pid %d) was killed, and the VM (pid %d) went with it", p.cmd.Process.Pid, info.PID)
	wantState(t, h.Backend, "vm-1", backend.Stopped)
	start(t, h, "vm-1")
}
