package store

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandboxforge/internal/fault"
)

func startTask(t *testing.T, s *Store, l Lease, kind TaskKind) Task {
	t.Helper()
	task, err := s.InsertTask(t.Context(), NewTask{InstanceID: l.InstanceID, Kind: kind, Command: "make 'x'", Cwd: "/w", User: "sandbox"})
	if err != nil {
		t.Fatal(err)
	}
	return task
}

func TestTaskLife(t *testing.T) {
	s, c := open(t)
	l := leaseIn(t, s, Running)
	task := startTask(t, s, l, TaskBackground)
	if len(task.TaskID) != len("task_")+12 || !strings.HasPrefix(task.TaskID, "task_") || task.Status != TaskRunning || !task.StartedAt.IsZero() {
		t.Errorf("new task %+v", task)
	}
	c.advance(time.Second)
	task, err := s.TaskStarted(t.Context(), task.TaskID, 412, time.Time{}, "/var/x")
	if err != nil || task.PID != 412 || !task.StartedAt.Equal(s.now()) || task.LogPath != "/var/x" {
		t.Errorf("started %+v %v", task, err)
	}
	c.advance(time.Second)
	zero := 0
	long := bytes.Repeat([]byte("0123456789"), TailBytes/5)
	task, err = s.FinishTask(t.Context(), task.TaskID, TaskEnd{Status: TaskSucceeded, ExitCode: &zero, StdoutBytes: 131_070, StdoutTail: long})
	if err != nil || task.Status != TaskSucceeded || task.ExitCode == nil || *task.ExitCode != 0 || !task.FinishedAt.Equal(s.now()) || !task.HasTails {
		t.Errorf("finished %+v %v", task, err)
	}
	out, errOut, err := s.Tails(t.Context(), task.TaskID)
	if err != nil || !bytes.Equal(out, long[len(long)-TailBytes:]) || len(errOut) != 0 {
		t.Errorf("tails of %d and %d bytes, %v", len(out), len(errOut), err)
	}

	// A finished task never changes, however one tries.
	one := 1
	again, err := s.FinishTask(t.Context(), task.TaskID, TaskEnd{Status: TaskStopped, ExitCode: &one, Signal: "KILL", StdoutTail: []byte("other")})
	wantCode(t, err, fault.TaskAlreadyFinished)
	if d := cmp.Diff(task, again); d != "" {
		t.Errorf("a second finish returned another task: %s", d)
	}
	if _, err := s.TaskStarted(t.Context(), task.TaskID, 1, time.Time{}, ""); !fault.Is(err, fault.TaskAlreadyFinished) {
		t.Errorf("started after the end: %v", err)
	}
	if _, err := s.writer.ExecContext(t.Context(), `UPDATE tasks SET status = 'running', finished_at = NULL`); err == nil {
		t.Error("a bare UPDATE revived a task")
	}
	read, err := s.Task(t.Context(), task.TaskID)
	if d := cmp.Diff(task, read); d != "" || err != nil {
		t.Errorf("the task changed: %s %v", d, err)
	}
	if out2, _, _ := s.Tails(t.Context(), task.TaskID); !bytes.Equal(out, out2) {
		t.Error("the tails changed")
	}

	// Its output may still be fetched when the instance ends.
	if err := s.SaveTails(t.Context(), task.TaskID, nil, []byte("e"), 5, 7); err != nil {
		t.Fatal(err)
	}
	read, err = s.Task(t.Context(), task.TaskID)
	if err != nil || read.StdoutBytes != 131_070 || read.StderrBytes != 7 {
		t.Errorf("totals %d %d %v", read.StdoutBytes, read.StderrBytes, err)
	}
	if _, err := s.FinishTask(t.Context(), task.TaskID, TaskEnd{Status: TaskRunning}); err == nil {
		t.Error("a task ended as running")
	}
}

func TestUnknownTask(t *testing.T) {
	s, _ := open(t)
	_, err := s.Task(t.Context(), "task_x")
	wantCode(t, err, fault.TaskNotFound)
	_, err = s.FinishTask(t.Context(), "task_x", TaskEnd{Status: TaskFailed})
	wantCode(t, err, fault.TaskNotFound)
	_, err = s.TaskStarted(t.Context(), "task_x", 1, time.Time{}, "")
	wantCode(t, err, fault.TaskNotFound)
	_, _, err = s.Tails(t.Context(), "task_x")
	wantCode(t, err, fault.TaskNotFound)
	wantCode(t, s.SaveTails(t.Context(), "task_x", nil, nil, 0, 0), fault.TaskNotFound)
}

func TestTasksNeedAUsableInstance(t *testing.T) {
	s, c := open(t)
	try := func(id string) error {
		_, err := s.InsertTask(t.Context(), NewTask{InstanceID: id, Kind: TaskCommand, Command: "true"})
		return err
	}
	wantCode(t, try("inst_ffffffff"), fault.InstanceNotFound)
	wantCode(t, try(leaseIn(t, s, Destroyed).InstanceID), fault.InstanceTerminal)
	wantCode(t, try(leaseIn(t, s, Creating).InstanceID), fault.RuntimeNotReady)
	l := leaseIn(t, s, Running)
	c.advance(time.Hour)
	wantCode(t, try(l.InstanceID), fault.InstanceTerminal)
}

func TestTheEndOfAnInstanceEndsItsTasks(t *testing.T) {
	for _, way := range [][]Status{{Destroying, Destroyed}, {Expiring, Expired}} {
		s, _ := open(t)
		l, other := leaseIn(t, s, Running), leaseIn(t, s, Running)
		running, done, apart := startTask(t, s, l, TaskBackground), startTask(t, s, l, TaskCommand), startTask(t, s, other, TaskCommand)
		three := 3
		done, err := s.FinishTask(t.Context(), done.TaskID, TaskEnd{Status: TaskFailed, ExitCode: &three})
		if err != nil {
			t.Fatal(err)
		}
		l = move(t, s, l, Move{To: way[0], Reason: "asked to"})
		if got, err := s.Task(t.Context(), running.TaskID); err != nil || got.Status != TaskRunning {
			t.Errorf("ended before the VM was gone: %+v %v", got, err)
		}
		move(t, s, l, Move{To: way[1]})
		got, err := s.Task(t.Context(), running.TaskID)
		if err != nil || got.Status != TaskStopped || !got.OutcomeUnknown || got.FinishedAt.IsZero() || !strings.Contains(got.ErrorMessage, "asked to") {
			t.Errorf("after the end: %+v %v", got, err)
		}
		for _, want := range []Task{done, apart} {
			got, err := s.Task(t.Context(), want.TaskID)
			if d := cmp.Diff(want, got); d != "" || err != nil {
				t.Errorf("another task changed: %s %v", d, err)
			}
		}
	}
}

func TestTasksFilter(t *testing.T) {
	s, c := open(t)
	l, other := leaseIn(t, s, Running), leaseIn(t, s, Running)
	a := startTask(t, s, l, TaskBackground)
	c.advance(time.Millisecond)
	b := startTask(t, s, l, TaskCommand)
	o := startTask(t, s, other, TaskBackground) // the same millisecond
	if _, err := s.FinishTask(t.Context(), a.TaskID, TaskEnd{Status: TaskFailed}); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		f    TaskFilter
		want []string
	}{
		"all":      {TaskFilter{}, []string{o.TaskID, b.TaskID, a.TaskID}},
		"instance": {TaskFilter{InstanceID: l.InstanceID}, []string{b.TaskID, a.TaskID}},
		"kind":     {TaskFilter{Kind: TaskBackground}, []string{o.TaskID, a.TaskID}},
		"status":   {TaskFilter{Status: TaskFailed}, []string{a.TaskID}},
		"limit":    {TaskFilter{Limit: 1}, []string{o.TaskID}},
		"none":     {TaskFilter{InstanceID: "inst_x"}, nil},
	} {
		got, err := s.Tasks(t.Context(), test.f)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, task := range got {
			ids = append(ids, task.TaskID)
		}
		if d := cmp.Diff(test.want, ids); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// TestAStopIsRecordedByWhoeverSeesTheEnd: the wish to stop a task is in its
// row, so that a second process that notices the end calls it stopped too.
func TestAStopIsRecordedByWhoeverSeesTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	s, other := openAt(t, path, Options{}), openAt(t, path, Options{})
	l := leaseIn(t, s, Running)
	task := startTask(t, s, l, TaskBackground)
	asked, first, err := s.RequestStop(t.Context(), task.TaskID)
	if err != nil || !first || asked.StopRequestedAt.IsZero() || asked.Status != TaskRunning {
		t.Fatalf("asked to stop: %+v %v %v", asked, first, err)
	}
	if again, first, err := other.RequestStop(t.Context(), task.TaskID); err != nil || first || !again.StopRequestedAt.Equal(asked.StopRequestedAt) {
		t.Errorf("asked again: %+v %v %v", again, first, err)
	}
	five := 5
	done, err := other.FinishTask(t.Context(), task.TaskID, TaskEnd{Status: TaskFailed, ExitCode: &five})
	if err != nil || done.Status != TaskStopped || *done.ExitCode != 5 {
		t.Errorf("finished by another process: %+v %v", done, err)
	}
	_, _, err = s.RequestStop(t.Context(), task.TaskID)
	wantCode(t, err, fault.TaskAlreadyFinished)
	_, _, err = s.RequestStop(t.Context(), "task_x")
	wantCode(t, err, fault.TaskNotFound)

	task = startTask(t, s, l, TaskBackground)
	if _, _, err := s.RequestStop(t.Context(), task.TaskID); err != nil {
		t.Fatal(err)
	}
	if back, err := s.WithdrawStop(t.Context(), task.TaskID); err != nil || !back.StopRequestedAt.IsZero() {
		t.Errorf("withdrawn: %+v %v", back, err)
	}
	if done, err := s.FinishTask(t.Context(), task.TaskID, TaskEnd{Status: TaskFailed}); err != nil || done.Status != TaskFailed {
		t.Errorf("after the withdrawal: %+v %v", done, err)
	}
}

// TestAnEndRecordsTheStartToo: one statement for a command whose start was not
// recorded apart, which never replaces what is recorded.
func TestAnEndRecordsTheStartToo(t *testing.T) {
	s, c := open(t)
	l := leaseIn(t, s, Running)
	began := s.now()
	c.advance(time.Second)
	end := TaskEnd{Status: TaskFailed, StartedAt: began, PID: 7, LogPath: "/spool/7",
		Event: &Event{What: "run_command", Outcome: OutcomeOK, Detail: []byte(`{"command":"make"}`)}}
	plain, err := s.FinishTask(t.Context(), startTask(t, s, l, TaskCommand).TaskID, end)
	if err != nil || !plain.StartedAt.Equal(began) || plain.PID != 7 || plain.LogPath != "/spool/7" {
		t.Errorf("%+v %v", plain, err)
	}
	events, err := s.Events(t.Context(), EventFilter{TaskID: plain.TaskID, What: "run_command"})
	if err != nil || len(events) != 1 || events[0].InstanceID != l.InstanceID || string(events[0].Detail) != `{"command":"make"}` {
		t.Errorf("events %+v %v", events, err)
	}
	started, err := s.TaskStarted(t.Context(), startTask(t, s, l, TaskCommand).TaskID, 9, s.now(), "/spool/9")
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.FinishTask(t.Context(), started.TaskID, end)
	if err != nil || !got.StartedAt.Equal(started.StartedAt) || got.PID != 9 || got.LogPath != "/spool/9" {
		t.Errorf("what was recorded changed: %+v %v", got, err)
	}
	none, err := s.FinishTask(t.Context(), startTask(t, s, l, TaskCommand).TaskID, TaskEnd{Status: TaskFailed})
	if err != nil || !none.StartedAt.IsZero() || none.PID != 0 || none.LogPath != "" {
		t.Errorf("an end that says nothing of the start: %+v %v", none, err)
	}
}

// TestTasksOfTheFirstSchema: rows of a database that an earlier build made stay.
func TestTasksOfTheFirstSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	execIn(t, path, migrations[0], fmt.Sprintf("PRAGMA user_version = 1; PRAGMA application_id = %d", applicationID),
		`INSERT INTO leases (instance_id, kind, status, generation, backend, backend_instance_name, created_at, expires_at, last_used_at)
		VALUES ('inst_00000001', 'instance', 'running', 1, 'fake', 'agent-00000001', 1, 2, 1)`,
		`INSERT INTO tasks (task_id, instance_id, kind, status, command, created_at)
		VALUES ('task_000000000001', 'inst_00000001', 'command', 'running', 'make', 1)`)
	s := openAt(t, path, Options{})
	if l, err := s.Lease(t.Context(), "inst_00000001"); err != nil || l.Status != Running || l.ParentSnapshot != "" {
		t.Errorf("%+v %v", l, err)
	}
	if got, err := s.Task(t.Context(), "task_000000000001"); err != nil || got.Status != TaskRunning || !got.StopRequestedAt.IsZero() {
		t.Errorf("%+v %v", got, err)
	}
}
