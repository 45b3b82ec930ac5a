package backendtest

import (
	"errors"
	"testing"
	"time"

	"sandboxforge/internal/backend"
)

// The cases in which the process that acts is killed with SIGKILL in the
// middle. Moments are spread, not aimed: each must leave a state that the next
// call copes with.

func moments(from, step time.Duration, n int) (all []time.Duration) {
	for i := range n {
		all = append(all, from+time.Duration(i)*step)
	}
	return all
}

func creatorKilled(t *testing.T, h *Harness) {
	for i, d := range moments(4*time.Millisecond, 5*time.Millisecond, 12) {
		done := h.killedWhile(t, "create", "vm-1", d)
		info, err := h.Backend.Inspect(within(t, limit), "vm-1")
		switch {
		case err == nil && info.State == backend.Stopped:
		case done:
			t.Fatalf("a VM whose creation was reported is %+v, %v", info, err)
		case err == nil && info.State == backend.Broken && info.Detail != "":
		case errors.Is(err, backend.ErrNotFound):
		default:
			t.Fatalf("after the creator was killed: %+v, %v", info, err)
		}
		if i%2 == 0 { // another try needs no clearing up
			create(t, h, "vm-1")
			wantState(t, h.Backend, "vm-1", backend.Stopped)
		}
		ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
		wantGone(t, h, "vm-1")
	}
}

func ownerKilledDuringStart(t *testing.T, h *Harness) {
	if !h.Backend.Capabilities().DiesWithOwner {
		t.Skip("VMs of this backend do not die with their owner")
	}
	for i, d := range moments(5*time.Millisecond, 9*time.Millisecond, 12) {
		create(t, h, "vm-1")
		h.killedWhile(t, "start", "vm-1", d)
		info, err := h.Backend.Inspect(within(t, limit), "vm-1")
		ok(t, err)
		if info.State == backend.Running && info.PID != 0 { // dying, at most
			t.Logf("the VM had pid %d", info.PID)
			ok(t, h.WaitGone(within(t, limit), info))
			wantState(t, h.Backend, "vm-1", backend.Stopped)
		}
		if i%2 == 0 {
			ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
			wantGone(t, h, "vm-1")
		}
	}
}

func deleterKilled(t *testing.T, h *Harness) {
	for _, d := range moments(5*time.Millisecond, 4*time.Millisecond, 10) {
		create(t, h, "vm-1")
		m := start(t, h, "vm-1")
		done := h.killedWhile(t, "delete", "vm-1", d)
		info, err := h.Backend.Inspect(within(t, limit), "vm-1")
		if err != nil && !errors.Is(err, backend.ErrNotFound) || done && err == nil {
			t.Fatalf("after the deleter was killed (done: %v): %+v, %v", done, info, err)
		}
		ok(t, h.Backend.Delete(within(t, limit), "vm-1"))
		wantGone(t, h, "vm-1")
		wait(t, "the VM's end", m.Done())
	}
}
