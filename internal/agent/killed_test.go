package agent_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"sandboxforge/internal/guest"
)

// TestKilledBeforeItWasStarted: a start that is later than the kill of its id
// does not run; any other signal forbids nothing.
func TestKilledBeforeItWasStarted(t *testing.T) {
	w := newWorld(t)
	mark := filepath.Join(w.dir, "ran")
	spec := guest.Spec{Command: "touch " + mark}
	if _, err := w.client.Signal(w.context(), "late", guest.SIGKILL, true); !errors.Is(err, guest.ErrNotFound) {
		t.Fatalf("killing an unknown process: %v", err)
	}
	if _, _, err := w.client.Start(w.context(), "late", spec); !errors.Is(err, guest.ErrFailedPrecondition) {
		t.Errorf("start after the kill: %v", err)
	}
	if _, err := w.client.Run(w.context(), "late", spec, nil); !errors.Is(err, guest.ErrFailedPrecondition) {
		t.Errorf("run after the kill: %v", err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("it ran although it had been killed")
	}
	if _, err := w.client.Signal(w.context(), "other", guest.SIGTERM, true); !errors.Is(err, guest.ErrNotFound) {
		t.Fatalf("SIGTERM to an unknown process: %v", err)
	}
	if p, err := w.client.Run(w.context(), "other", spec, nil); err != nil || p.ExitCode != 0 {
		t.Errorf("after a SIGTERM that met nobody: %+v %v", p, err)
	}
	if _, err := w.client.Signal(w.context(), "../x", guest.SIGKILL, true); !errors.Is(err, guest.ErrInvalid) {
		t.Errorf("an id that no process can have: %v", err)
	}
}

// TestKillAndStartAtOnce: in whatever order they arrive, nothing runs on.
func TestKillAndStartAtOnce(t *testing.T) {
	w := newWorld(t)
	ctx := w.context()
	for i := range 20 {
		id := fmt.Sprint("race-", i)
		var wg sync.WaitGroup
		wg.Go(func() { w.client.Start(ctx, id, guest.Spec{Argv: []string{"sleep", "4747"}}) })
		wg.Go(func() { w.client.Signal(ctx, id, guest.SIGKILL, true) })
		wg.Wait()
	}
	eventually(t, "every process is dead", func() bool {
		list, err := w.client.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			if !p.Ended() {
				return false
			}
		}
		return true
	})
}

// TestKilledIdsAreForgotten: a client that kills without end fills no memory.
func TestKilledIdsAreForgotten(t *testing.T) {
	w := newWorld(t)
	ctx := w.context()
	for i := range 1100 {
		if _, err := w.client.Signal(ctx, fmt.Sprint("none-", i), guest.SIGKILL, true); !errors.Is(err, guest.ErrNotFound) {
			t.Fatal(err)
		}
	}
	if p, err := w.client.Run(ctx, "none-0", guest.Spec{Command: "true"}, nil); err != nil || p.ExitCode != 0 {
		t.Errorf("the oldest is remembered: %+v %v", p, err)
	}
	if _, err := w.client.Run(ctx, "none-1099", guest.Spec{Command: "true"}, nil); !errors.Is(err, guest.ErrFailedPrecondition) {
		t.Errorf("the newest is forgotten: %v", err)
	}
}
