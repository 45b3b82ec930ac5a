//go:build unix

package supervisor

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// TestSaveThatGoesOn: the guest's own deadline is taken from what is saved and
// set again afterwards, and the guest answers as before, also if its agent
// fails once when it is reached again.
func TestSaveThatGoesOn(t *testing.T) {
	for name, b := range map[string]*fakeBackend{"well": {}, "agent stumbles": {Stumbles: true}} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t, b)
			c := launch(t, o)
			ctx := testContext(t)
			dir := filepath.Join(t.TempDir(), "state")
			st, err := c.Save(ctx, dir, false)
			if err != nil || st.Dir != dir {
				t.Fatalf("%+v, %v", st, err)
			}
			if _, err := c.Guest().Ping(ctx); err != nil {
				t.Errorf("the guest after the save: %v", err)
			}
			if got := trace(t, o); !strings.HasSuffix(got, "backstop 61\nbackstop 0\nsave end=false\nbackstop 61\n") {
				t.Errorf("the guest was told:\n%s", got)
			}
			now, err := c.Status(ctx)
			if err != nil || now.State != StateReady || now.Stage != "ready" || !now.AgentConnected {
				t.Errorf("%+v, %v", now, err)
			}
		})
	}
}

func TestSaveThatEnds(t *testing.T) {
	o := testOptions(t, &fakeBackend{})
	c := launch(t, o)
	if _, err := c.Save(testContext(t), filepath.Join(t.TempDir(), "state"), true); err != nil {
		t.Fatal(err)
	}
	if end := awaitEnd(t, o); end.Reason != "stopped" {
		t.Errorf("%+v", end)
	}
}

// TestSaveThatEndsSlowly: a save that is written long after its VM has ended
// answers its caller all the same, before the supervisor is gone.
func TestSaveThatEndsSlowly(t *testing.T) {
	o := testOptions(t, &fakeBackend{SaveWork: linger + time.Second})
	c := launch(t, o)
	dir := filepath.Join(t.TempDir(), "state")
	if st, err := c.Save(testContext(t), dir, true); err != nil || st.Dir != dir {
		t.Fatalf("%+v, %v", st, err)
	}
	awaitEnd(t, o)
}

// TestSaveOfWhatStops: a VM that is being taken down is not frozen for a save.
func TestSaveOfWhatStops(t *testing.T) {
	b := &fakeBackend{}
	o := testOptions(t, b)
	s, err := newSupervisor(o, b, systemClock{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.deadline.alarm.Close()
	defer s.cancel()
	m, err := b.Start(t.Context(), "vm-1", backend.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.setMachine(m)
	s.board.update(func(st *Status) { st.State = StateReady })
	if err := s.gate.enter(t.Context()); err != nil { // a call that goes on
		t.Fatal(err)
	}
	close(s.stopped) // between the look at the state and the drain
	_, err = s.save(t.Context(), filepath.Join(t.TempDir(), "state"), false)
	if !errors.Is(err, ErrEnded) || !fault.Is(err, fault.InstanceTerminal) {
		t.Errorf("%v", err)
	}
	if strings.Contains(trace(t, o), "save") {
		t.Error("it was saved")
	}
	s.gate.leave()
	if err := s.gate.enter(testContext(t)); err != nil {
		t.Errorf("the gate stays shut: %v", err)
	}
}
