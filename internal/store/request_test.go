package store

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/fault"
)

func begin(t *testing.T, s *Store, id, fingerprint string) (Request, Outcome) {
	t.Helper()
	r, o, err := s.BeginRequest(t.Context(), "create_instance", id, fingerprint)
	if err != nil {
		t.Fatal(err)
	}
	return r, o
}

func TestRequestLife(t *testing.T) {
	s, _ := open(t)
	r, o := begin(t, s, "r", "f")
	if o != Fresh {
		t.Fatalf("outcome %v", o)
	}
	n := newLease(s)
	n.Request = &r
	l, err := s.Admit(t.Context(), n, Limits{})
	if err != nil || l.RequestID != "r" || r.InstanceID != l.InstanceID {
		t.Fatalf("admit: %v, lease of request %q, request of instance %q", err, l.RequestID, r.InstanceID)
	}
	if again, o := begin(t, s, "r", "f"); o != InProgress || again.InstanceID != l.InstanceID {
		t.Errorf("meanwhile: %v %+v", o, again)
	}
	_, _, err = s.BeginRequest(t.Context(), "create_instance", "r", "other")
	wantCode(t, err, fault.InvalidArgument)
	if _, o, err := s.BeginRequest(t.Context(), "run_command", "r", "other"); err != nil || o != Fresh {
		t.Errorf("in another tool: %v %v", o, err)
	}
	if err := s.FinishRequest(t.Context(), r, RequestDone, map[string]string{"instance_id": l.InstanceID}); err != nil {
		t.Fatal(err)
	}
	again, o := begin(t, s, "r", "f")
	if o != Finished || again.State != RequestDone || string(again.Result) != `{"instance_id":"`+l.InstanceID+`"}` {
		t.Errorf("afterwards: %v %+v", o, again)
	}
	if err := s.FinishRequest(t.Context(), r, RequestFailed, 1); !errors.Is(err, ErrConflict) {
		t.Errorf("a second end: %v", err)
	}
	if err := s.ForgetRequest(t.Context(), r); !errors.Is(err, ErrConflict) {
		t.Errorf("a finished request was forgotten: %v", err)
	}
}

func TestForgottenRequest(t *testing.T) {
	s, _ := open(t)
	r, _ := begin(t, s, "r", "f")
	if err := s.ForgetRequest(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if _, o := begin(t, s, "r", "other"); o != Fresh {
		t.Errorf("outcome %v", o)
	}
}

func TestCallsWithoutRequestID(t *testing.T) {
	s, _ := open(t)
	for range 2 {
		r, o := begin(t, s, "", "f")
		if o != Fresh {
			t.Fatalf("outcome %v", o)
		}
		n := newLease(s)
		n.Request = &r
		if _, err := s.Admit(t.Context(), n, Limits{}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.FinishRequest(t.Context(), r, RequestDone, 1), s.ForgetRequest(t.Context(), r)); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := s.BeginRequest(t.Context(), "x", strings.Repeat("r", 201), "")
	if !fault.Is(err, fault.InvalidArgument) {
		t.Errorf("a long id: %v", err)
	}
}

// TestTakeOver: the holder seems dead, is taken over, and turns out to live.
func TestTakeOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	slow := Owner{PID: 1 << 30}
	alive := func(o Owner) bool { return o.PID != slow.PID }
	a := openAt(t, path, Options{Self: slow, Alive: alive})
	b := openAt(t, path, Options{Alive: alive})
	r, _ := begin(t, a, "r", "f")
	l := leaseIn(t, a, Running)
	task, err := a.InsertTask(t.Context(), NewTask{InstanceID: l.InstanceID, Kind: TaskCommand, Request: &r})
	if err != nil || task.RequestID != "r" {
		t.Fatal(task, err)
	}
	seen, o := begin(t, b, "r", "f")
	if o != OwnerDied || seen.TaskID != task.TaskID {
		t.Fatalf("%v %+v", o, seen)
	}
	f := wantCode(t, seen.UnknownFault(), fault.OutcomeUnknown)
	if !strings.Contains(strings.Join(f.NextSteps, " "), task.TaskID) {
		t.Errorf("next steps %q", f.NextSteps)
	}
	mine, err := b.TakeOverRequest(t.Context(), seen)
	if err != nil || mine.Holder.PID != b.self.PID {
		t.Fatalf("%+v %v", mine, err)
	}
	if _, err := b.TakeOverRequest(t.Context(), seen); !errors.Is(err, ErrConflict) {
		t.Errorf("taken over twice: %v", err)
	}
	n := newLease(a)
	n.Request = &r
	if _, err := a.Admit(t.Context(), n, Limits{}); !errors.Is(err, ErrConflict) {
		t.Errorf("the old holder got a VM: %v", err)
	}
	if live, err := a.Leases(t.Context(), LeaseFilter{}); err != nil || len(live) != 1 {
		t.Errorf("leases %v %v", live, err)
	}
	if err := a.FinishRequest(t.Context(), r, RequestDone, 1); !errors.Is(err, ErrConflict) {
		t.Errorf("the old holder ended it: %v", err)
	}
	if err := b.FinishRequest(t.Context(), mine, RequestFailed, "x"); err != nil {
		t.Error(err)
	}
}

// TestReleasedRequest: one that its holder gave up waits for whoever comes next,
// and what it had made stays known.
func TestReleasedRequest(t *testing.T) {
	s, _ := open(t)
	r, _ := begin(t, s, "r", "f")
	n := newLease(s)
	n.Request = &r
	l, err := s.Admit(t.Context(), n, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ReleaseRequest(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	seen, o := begin(t, s, "r", "f")
	if o != OwnerDied || seen.InstanceID != l.InstanceID {
		t.Fatalf("%v %+v", o, seen)
	}
	mine, err := s.TakeOverRequest(t.Context(), seen)
	if err != nil {
		t.Fatal(err)
	}
	if _, o := begin(t, s, "r", "f"); o != InProgress {
		t.Errorf("taken over again: %v", o)
	}
	if err := s.ReleaseRequest(t.Context(), r); !errors.Is(err, ErrConflict) {
		t.Errorf("given up by who does not hold it: %v", err)
	}
	if err := s.FinishRequest(t.Context(), mine, RequestDone, 1); err != nil {
		t.Fatal(err)
	}
	if err := s.ReleaseRequest(t.Context(), Request{}); err != nil {
		t.Errorf("without an id: %v", err)
	}
}

func TestFingerprint(t *testing.T) {
	type p struct {
		B int    `json:"b"`
		A string `json:"a"`
	}
	same := Fingerprint(map[string]any{"a": "x", "b": 1})
	if got := Fingerprint(p{1, "x"}); got != same {
		t.Error("the order of keys matters")
	}
	big := map[string]any{"n": int64(1<<53 + 1)}
	for name, v := range map[string]any{"value": p{2, "x"}, "nil": nil, "channel": make(chan int)} {
		if Fingerprint(v) == same {
			t.Errorf("%s: the same", name)
		}
	}
	if Fingerprint(big) == Fingerprint(map[string]any{"n": int64(1 << 53)}) {
		t.Error("large numbers are merged")
	}
}

func TestPrune(t *testing.T) {
	s, c := open(t)
	old := leaseIn(t, s, Running)
	task := startTask(t, s, old, TaskCommand)
	if _, err := s.FinishTask(t.Context(), task.TaskID, TaskEnd{Status: TaskFailed, StdoutTail: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	old = move(t, s, old, Move{To: Destroying})
	move(t, s, old, Move{To: Destroyed})
	stuck := leaseIn(t, s, Error) // never pruned, however old
	r, _ := begin(t, s, "done", "f")
	if err := s.FinishRequest(t.Context(), r, RequestDone, 1); err != nil {
		t.Fatal(err)
	}
	c.advance(TerminalRetention)
	if p, err := s.Prune(t.Context()); err != nil || p.Leases != 0 {
		t.Errorf("pruned too early: %+v %v", p, err)
	}
	fresh := leaseIn(t, s, Destroyed)
	c.advance(time.Minute)
	p, err := s.Prune(t.Context())
	if err != nil || p.Leases != 1 || p.Requests != 1 || p.Events != 0 {
		t.Errorf("pruned %+v %v", p, err)
	}
	_, err = s.Lease(t.Context(), old.InstanceID)
	wantCode(t, err, fault.InstanceNotFound)
	_, err = s.Task(t.Context(), task.TaskID)
	wantCode(t, err, fault.TaskNotFound)
	for _, l := range []Lease{stuck, fresh} {
		if _, err := s.Lease(t.Context(), l.InstanceID); err != nil {
			t.Error(err)
		}
	}
	c.advance(EventRetention)
	if p, err = s.Prune(t.Context()); err != nil || p.Events == 0 {
		t.Errorf("pruned %+v %v", p, err)
	}
	if problems, err := s.Check(t.Context()); err != nil || len(problems) > 0 {
		t.Errorf("check: %q %v", problems, err)
	}
}

func TestTailsAreBounded(t *testing.T) {
	s, c := open(t)
	l := leaseIn(t, s, Running)
	var ids []string
	for range 3 {
		task := startTask(t, s, l, TaskCommand)
		ids = append(ids, task.TaskID)
		if err := s.SaveTails(t.Context(), task.TaskID, make([]byte, TailBytes), nil, 0, 0); err != nil {
			t.Fatal(err)
		}
		c.advance(time.Second)
	}
	// The budget's statement with a budget for two.
	if _, err := s.writer.ExecContext(t.Context(), sqlPruneTails, 2*TailBytes); err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		task, err := s.Task(t.Context(), id)
		if err != nil || task.HasTails != (i > 0) {
			t.Errorf("task %d of 3: tails %v (%v)", i+1, task.HasTails, err)
		}
	}
}

func TestEvents(t *testing.T) {
	s, c := open(t)
	l := leaseIn(t, s, Running)
	if err := s.Record(t.Context(), Event{InstanceID: l.InstanceID, What: "run_command", Outcome: "COMMAND_TIMED_OUT", Detail: []byte(`{"a":1}`)}); err != nil {
		t.Fatal(err)
	}
	if err := s.Record(t.Context(), Event{What: "big", Detail: encode(strings.Repeat("x", maxDetail))}); err != nil {
		t.Fatal(err)
	}
	got, err := s.Events(t.Context(), EventFilter{})
	if err != nil || len(got) != 4 {
		t.Fatalf("events %+v %v", got, err)
	}
	if string(got[0].Detail) != `{"dropped_bytes":8194}` {
		t.Errorf("detail %s", got[0].Detail)
	}
	e := got[1]
	if e.What != "run_command" || string(e.Detail) != `{"a":1}` || e.Session != "test" || e.PID != s.self.PID || !e.At.Equal(c.now().Truncate(time.Millisecond)) {
		t.Errorf("event %+v", e)
	}
	if e := got[2]; e.What != "move" || e.From != "creating" || e.To != "running" || e.InstanceID != l.InstanceID {
		t.Errorf("event %+v", e)
	}
	later, err := s.Events(t.Context(), EventFilter{AfterID: got[2].ID, InstanceID: l.InstanceID})
	if err != nil || len(later) != 1 || later[0].ID != got[1].ID {
		t.Errorf("later events %+v %v", later, err)
	}
}

// TestEventsAreBoundedWithoutPrune starts the count near the limit.
func TestEventsAreBoundedWithoutPrune(t *testing.T) {
	s, _ := open(t)
	if _, err := s.writer.ExecContext(t.Context(), `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO events (at, what) SELECT i, 'x' FROM n`, MaxEvents+trimEvery-MaxEvents%trimEvery-1); err != nil {
		t.Fatal(err)
	}
	if err := s.Record(t.Context(), Event{What: "last"}); err != nil {
		t.Fatal(err)
	}
	if i, err := s.Info(t.Context()); err != nil || i.Events != MaxEvents {
		t.Errorf("%d events, want %d (%v)", i.Events, MaxEvents, err)
	}
}
