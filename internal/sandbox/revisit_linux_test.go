package sandbox

import (
	"context"
	"slices"
	"strings"
	"testing"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

// A repeated is a call that makes one instance, as an order for a server and as a
// repeat, which returns the instance's id.
type repeated struct {
	name   string
	order  labOrder
	repeat func(ctx context.Context) (string, error)
}

// repeatedCalls are the ways to an instance, each with a request_id.
func (l *lab) repeatedCalls(src, snapshot string) []repeated {
	fork := ForkInstanceRequest{InstanceID: src, RequestID: "f"}
	rest := RestoreInstanceRequest{SnapshotID: snapshot, RequestID: "r"}
	made := l.request()
	made.RequestID = "c"
	return []repeated{
		{"fork", labOrder{Fork: &fork}, func(ctx context.Context) (string, error) {
			r, err := l.s.ForkInstance(ctx, fork)
			if err != nil {
				return "", err
			}
			if r.Created != 1 || len(r.Children) != 1 {
				l.t.Errorf("%+v", r)
			}
			return r.Children[0].InstanceID, nil
		}},
		{"restore", labOrder{Rest: &rest}, func(ctx context.Context) (string, error) {
			r, err := l.s.RestoreInstance(ctx, rest)
			if err != nil {
				return "", err
			}
			return r.InstanceID, nil
		}},
		{"create", labOrder{Make: &made}, func(ctx context.Context) (string, error) {
			r, err := l.s.CreateInstance(ctx, made)
			if err != nil {
				return "", err
			}
			return r.InstanceID, nil
		}},
	}
}

func (l *lab) snapshot(id string) *SnapshotInstanceResult {
	l.t.Helper()
	r, err := l.s.SnapshotInstance(l.context(), SnapshotInstanceRequest{InstanceID: id})
	if err != nil {
		l.t.Fatal(err)
	}
	return r
}

// dieAt runs an order in a server that is killed at a stage, and returns the
// instances that there are now and were not before.
func (l *lab) dieAt(stage string, o labOrder, ready func(made []string) bool) (made []string) {
	l.t.Helper()
	before := l.active()
	reached, release := l.hold("at-" + stage)
	cmd, _ := l.server(o)
	reached()
	l.eventually(func() bool {
		made = slices.DeleteFunc(l.active(), func(id string) bool { return slices.Contains(before, id) })
		return ready(made)
	})
	l.killServer(cmd)
	release()
	return made
}

func (l *lab) status(id string) store.Status {
	l.t.Helper()
	lease, err := l.s.store.Lease(l.t.Context(), id)
	if err != nil {
		l.t.Fatal(err)
	}
	return lease.Status
}

// cancelAt is a context that ends when a stage is reported.
func (l *lab) cancelAt(stage string) context.Context {
	return l.at(stage, func() {})
}

func one(made []string) bool { return len(made) == 1 }

// TestARepeatFindsWhatRuns: an instance that came up before its server died is
// the repeat's result. While that cannot be told, for a supervisor that is slow
// or a caller that leaves, it is left alone, and the next repeat is told.
func TestARepeatFindsWhatRuns(t *testing.T) {
	for i, name := range []string{"fork", "restore", "create"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each waits for an answer that does not come
			l := newLab(t)
			src := l.create().InstanceID
			c := l.repeatedCalls(src, l.snapshot(src).SnapshotID)[i]
			id := l.dieAt("running", c.order, one)[0]
			_, err := c.repeat(l.cancelAt("resume"))
			wantCode(t, err, fault.Cancelled)
			goOn := l.stop(id)
			_, err = c.repeat(l.context())
			wantCode(t, err, fault.RuntimeNotReady)
			if got := l.status(id); got != store.Running {
				t.Errorf("it is %s", got)
			}
			goOn()
			for range 2 {
				if got, err := c.repeat(l.context()); err != nil || got != id {
					t.Errorf("%s %v, want %s", got, err, id)
				}
			}
			if got := l.active(); len(got) != 2 {
				t.Errorf("active: %v", got)
			}
		})
	}
}

// TestARepeatReplacesNothing: what was there and was removed since is not made
// again.
func TestARepeatReplacesNothing(t *testing.T) {
	l := newLab(t)
	src := l.create().InstanceID
	for _, c := range l.repeatedCalls(src, l.snapshot(src).SnapshotID) {
		id := l.dieAt("running", c.order, one)[0]
		l.destroy(id)
		for range 2 {
			_, err := c.repeat(l.context())
			wantCode(t, err, fault.OutcomeUnknown)
		}
		if got := l.active(); !slices.Equal(got, []string{src}) {
			t.Errorf("%s: active: %v", c.name, got)
		}
	}
}

// TestARepeatOfAFork: the result is the children of that fork, those that run and
// those that do not, and not what somebody else made of its state.
func TestARepeatOfAFork(t *testing.T) {
	l := newLab(t)
	src := l.create()
	r := ForkInstanceRequest{InstanceID: src.InstanceID, Count: count(2), RequestID: "f"}
	made := l.dieAt("children", labOrder{Fork: &r}, func(made []string) bool {
		return len(made) == 2 && l.status(made[0]) == store.Running && l.status(made[1]) == store.Running
	})
	rows, err := l.s.store.Snapshots(t.Context(), store.SnapshotFilter{})
	if err != nil || len(rows) != 1 {
		t.Fatalf("%+v %v", rows, err)
	}
	other, err := l.s.RestoreInstance(l.context(), RestoreInstanceRequest{SnapshotID: rows[0].SnapshotID})
	if err != nil {
		t.Fatal(err)
	}
	l.destroy(made[0])
	out, err := l.s.ForkInstance(l.context(), r)
	if err != nil || out.Created != 1 || out.Failed != 1 || len(out.Children) != 2 || out.Status != "partial" ||
		!strings.Contains(strings.Join(out.Warnings, "\n"), "1 of 2 children came up and have ended since") {
		t.Fatalf("%+v %v", out, err)
	}
	for _, c := range out.Children {
		switch {
		case c.InstanceID == made[0]:
			if c.Error == nil || c.Error.ErrorCode != string(fault.OutcomeUnknown) {
				t.Errorf("%+v", c)
			}
		case c.InstanceID != made[1] || c.Instance == nil:
			t.Errorf("%+v", c)
		}
	}
	// And where none of them is left, the other one is still not the fork's.
	again := ForkInstanceRequest{InstanceID: other.InstanceID, RequestID: "g"}
	child := l.dieAt("running", labOrder{Fork: &again}, one)[0]
	rows, err = l.s.store.Snapshots(t.Context(), store.SnapshotFilter{InstanceID: other.InstanceID})
	if err != nil || len(rows) != 1 {
		t.Fatalf("%+v %v", rows, err)
	}
	third, err := l.s.RestoreInstance(l.context(), RestoreInstanceRequest{SnapshotID: rows[0].SnapshotID})
	if err != nil {
		t.Fatal(err)
	}
	l.destroy(child)
	_, err = l.s.ForkInstance(l.context(), again)
	wantCode(t, err, fault.OutcomeUnknown)
	if got := l.status(third.InstanceID); got != store.Running {
		t.Errorf("the instance of somebody else is %s", got)
	}
}

// TestARepeatOfASnapshot: one that was ready is the result, or, if it was deleted,
// no reason for another; one that never was is made anew.
func TestARepeatOfASnapshot(t *testing.T) {
	l := newLab(t)
	src := l.create()
	saved := func(id string) SnapshotInstanceRequest {
		r := SnapshotInstanceRequest{InstanceID: src.InstanceID, RequestID: id}
		l.dieAt("saved", labOrder{Snap: &r}, func([]string) bool { return true })
		return r
	}
	only := func(want ...string) {
		t.Helper()
		rows, err := l.s.store.Snapshots(t.Context(), store.SnapshotFilter{})
		var got []string
		for _, sn := range rows {
			got = append(got, sn.SnapshotID)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%v %v, want %v", got, err, want)
		}
	}
	r := saved("ready")
	out, err := l.s.SnapshotInstance(l.context(), r)
	if err != nil || out.Status != "ready" {
		t.Fatalf("%+v %v", out, err)
	}
	only(out.SnapshotID)
	if _, err := l.s.DeleteSnapshot(l.context(), DeleteSnapshotRequest{SnapshotID: out.SnapshotID}); err != nil {
		t.Fatal(err)
	}

	r = saved("deleted")
	rows, err := l.s.store.Snapshots(t.Context(), store.SnapshotFilter{})
	if err != nil || len(rows) != 1 {
		t.Fatalf("%+v %v", rows, err)
	}
	if _, err := l.s.DeleteSnapshot(l.context(), DeleteSnapshotRequest{SnapshotID: rows[0].SnapshotID}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err = l.s.SnapshotInstance(l.context(), r)
		wantCode(t, err, fault.OutcomeUnknown)
	}
	only()

	// While the save goes on, a repeat waits, and one that leaves changes nothing.
	half := func(id string) (r SnapshotInstanceRequest, release func()) {
		r = SnapshotInstanceRequest{InstanceID: src.InstanceID, RequestID: id}
		reached, release := l.hold("save")
		cmd, _ := l.server(labOrder{Snap: &r})
		reached()
		l.killServer(cmd)
		return r, release
	}
	r, release := half("half")
	_, err = l.s.SnapshotInstance(l.cancelAt("waiting"), r)
	wantCode(t, err, fault.Cancelled)
	release()
	if out, err = l.s.SnapshotInstance(l.context(), r); err != nil || out.Status != "ready" {
		t.Fatalf("%+v %v", out, err)
	}
	only(out.SnapshotID)

	r, release = half("removed by reconciliation")
	release()
	l.eventually(func() bool { l.gc(); return len(l.rows()) == 1 })
	again, err := l.s.SnapshotInstance(l.context(), r)
	if err != nil || again.Status != "ready" {
		t.Fatalf("%+v %v", again, err)
	}
	only(again.SnapshotID, out.SnapshotID)
}

// TestARepeatOfACommand: where it cannot be told how a command is that a dead
// server had begun, for a supervisor that does not answer, the next repeat is
// told.
func TestARepeatOfACommand(t *testing.T) {
	l := newLab(t)
	src := l.create().InstanceID
	run := RunCommandRequest{InstanceID: src, Command: "make"}
	start := StartBackgroundTaskRequest{InstanceID: src, Command: "make"}
	for _, c := range []struct {
		scope  string
		kind   store.TaskKind
		params any
		repeat func() error
	}{
		{"run_command", store.TaskCommand, run, func() error {
			r := run
			r.RequestID = "r"
			_, err := l.s.RunCommand(l.context(), r)
			return err
		}},
		{"start_background_task", store.TaskBackground, start, func() error {
			r := start
			r.RequestID = "r"
			_, err := l.s.StartBackgroundTask(l.context(), r)
			return err
		}},
	} {
		state := func(want store.Outcome) store.Request {
			t.Helper()
			req, got, err := l.s.store.BeginRequest(t.Context(), c.scope, "r", store.Fingerprint(c.params))
			if err != nil || got != want {
				t.Fatalf("%s: %v %v, want %v", c.scope, got, err, want)
			}
			return req
		}
		req := state(store.Fresh)
		if _, err := l.s.store.InsertTask(t.Context(), store.NewTask{InstanceID: src, Kind: c.kind, Command: "make", Request: &req}); err != nil {
			t.Fatal(err)
		}
		if err := l.s.store.ReleaseRequest(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		lease, err := l.s.store.Lease(t.Context(), src)
		if err != nil {
			t.Fatal(err)
		}
		l.s.links.drop(lease.BackendInstanceName)
		goOn := l.stop(src)
		wantCode(t, c.repeat(), fault.RuntimeNotReady)
		goOn()
		state(store.OwnerDied)
		if c.kind == store.TaskCommand { // the lab's guest starts nothing
			if err := c.repeat(); err != nil {
				t.Error(err)
			}
			state(store.Finished)
		}
	}
}
