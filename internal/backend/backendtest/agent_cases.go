package backendtest

import (
	"context"
	"testing"
	"time"

	"sandboxforge/internal/backend"
)

// The cases that wait for the guest.

// reach waits for the agent of m and returns the guest's identity. The stream
// is closed again.
func reach(t *testing.T, h *Harness, m backend.Machine) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), h.BootDeadline)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {})
	defer stop()
	go func() { // a guest that ended will not answer
		select {
		case <-m.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	stream, err := m.DialAgent(ctx)
	ok(t, err)
	defer stream.Close()
	begin := time.Now()
	id, err := h.WaitAgent(ctx, stream)
	if err != nil {
		t.Fatalf("the agent did not answer within %s: %v\nexit %+v, console:\n%s", h.BootDeadline, err, m.Exit(), m.Console(4<<10))
	}
	t.Logf("guest %q answered %.1f s after the dial", id, time.Since(begin).Seconds())
	return id
}

// boot starts a VM and waits for its agent, again when the boot fails as
// emulated boots do.
func boot(t *testing.T, h *Harness, name string) (backend.Machine, string) {
	t.Helper()
	for attempt := 1; ; attempt++ {
		m, err := h.Backend.Start(within(t, limit), name, backend.StartOptions{Cautious: attempt == 3})
		ok(t, err)
		t.Cleanup(func() { m.Stop(context.Background(), 0) })
		t.Logf("started %s: pid %d, accelerator %s", name, m.Info().PID, m.Info().Accelerator)
		w, watched := m.(backend.BootWatcher)
		if !watched {
			return m, reach(t, h, m)
		}
		answered := make(chan string, 1)
		ctx, cancel := context.WithTimeout(t.Context(), h.BootDeadline)
		var agentErr error
		go func() {
			defer close(answered)
			stream, err := m.DialAgent(ctx)
			if agentErr = err; err != nil {
				return
			}
			defer stream.Close()
			id, err := h.WaitAgent(ctx, stream)
			if agentErr = err; err == nil {
				answered <- id
			}
			cancel()
		}()
		failure := w.WatchBoot(ctx)
		cancel()
		id, up := <-answered
		switch {
		case up:
			t.Logf("guest %q answered", id)
			return m, id
		case failure == nil || attempt == 3:
			t.Fatalf("no agent within %s: %v, %v\nconsole:\n%s", h.BootDeadline, agentErr, failure, m.Console(4<<10))
		}
		t.Logf("attempt %d: %v", attempt, failure)
		ok(t, m.Stop(within(t, limit), 0))
	}
}

func agentAnswers(t *testing.T, h *Harness) {
	create(t, h, "vm-1")
	m, id := boot(t, h, "vm-1")
	// A new stream takes the place of the old, closed or not.
	old, err := m.DialAgent(within(t, limit))
	ok(t, err)
	if again := reach(t, h, m); again != id {
		t.Errorf("guest %q, before %q", again, id)
	}
	if n, err := old.Read(make([]byte, 1)); err == nil {
		t.Errorf("the old stream still gives %d bytes", n)
	}
	old.Close()
	for range 5 {
		reach(t, h, m)
	}
	if len(m.Console(1<<20)) == 0 {
		t.Error("the console is empty")
	}
	if got := m.Console(3); len(got) > 3 {
		t.Errorf("Console(3) gave %d bytes", len(got))
	}
	if !h.Polite {
		return
	}
	ok(t, m.Stop(within(t, 2*limit), limit))
	wantExit(t, m, backend.ExitStopped)
}

func twoVMs(t *testing.T, h *Harness) {
	create(t, h, "vm-1")
	create(t, h, "vm-2")
	m1, id1 := boot(t, h, "vm-1")
	m2, id2 := boot(t, h, "vm-2")
	if id1 == id2 {
		t.Errorf("both guests say that they are %q", id1)
	}
	i1, i2 := wantState(t, h.Backend, "vm-1", backend.Running), wantState(t, h.Backend, "vm-2", backend.Running)
	if i1.PID == i2.PID && i1.PID != 0 || i1.Dir == i2.Dir {
		t.Errorf("they share something: %+v, %+v", i1, i2)
	}
	ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
	wait(t, "the end of vm-1", m1.Done())
	if got := reach(t, h, m2); got != id2 {
		t.Errorf("after vm-1 was deleted, vm-2 is %q, before %q", got, id2)
	}
	wantState(t, h.again(t), "vm-2", backend.Running)
	wantGone(t, h, "vm-1")
}
