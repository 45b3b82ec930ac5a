package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"sandboxforge/internal/fault"
)

// TaskKind is how a task was started.
type TaskKind string

// The kinds.
const (
	TaskBackground TaskKind = "background" // start_background_task
	TaskCommand    TaskKind = "command"    // run_command
)

// TaskStatus is a task's status as the tool contract spells it.
type TaskStatus string

// The statuses. A task that ended without anybody seeing how is failed or
// stopped with OutcomeUnknown.
const (
	TaskRunning   TaskStatus = "running"
	TaskSucceeded TaskStatus = "succeeded"
	TaskFailed    TaskStatus = "failed"
	TaskStopped   TaskStatus = "stopped"
)

// Finished: the task will never change again.
func (s TaskStatus) Finished() bool { return s != TaskRunning }

// TailBytes is how much of the end of each output stream is kept on the host.
const TailBytes = 64 << 10

// Task is one process that was started in an instance, as recorded.
type Task struct {
	TaskID     string // task_ and 12 hex digits
	InstanceID string
	Kind       TaskKind
	Status     TaskStatus
	Command    string
	Cwd        string
	User       string

	CreatedAt  time.Time
	StartedAt  time.Time // zero until the guest has confirmed the start
	FinishedAt time.Time // zero while running
	// StopRequestedAt is when somebody began to stop it; zero if nobody did.
	StopRequestedAt time.Time
	PID             int64 // in the guest; 0 until started
	ExitCode        *int
	Signal          string
	// ErrorMessage says what went wrong, in words.
	ErrorMessage string
	// OutcomeUnknown: the task is over, and nobody knows whether it had ended
	// by itself before.
	OutcomeUnknown bool
	LogPath        string // in the guest
	// StdoutBytes and StderrBytes are all that the task wrote.
	StdoutBytes int64
	StderrBytes int64

	RequestID    string
	OwnerSession string
	Holder       Owner // the process that started it
	HasTails     bool
}

// NewTask is what is known of a task before it is started.
type NewTask struct {
	InstanceID string
	Kind       TaskKind
	Command    string
	Cwd        string
	User       string
	Request    *Request // as in NewLease
}

// TaskEnd is how a task ended.
type TaskEnd struct {
	Status         TaskStatus
	ExitCode       *int
	Signal         string
	ErrorMessage   string
	OutcomeUnknown bool
	FinishedAt     time.Time // zero: now
	// StartedAt, PID and LogPath are as in TaskStarted, for a task whose start
	// was not recorded apart; they do not replace what is recorded. Zero
	// values say nothing.
	StartedAt   time.Time
	PID         int64
	LogPath     string
	StdoutBytes int64 // totals
	StderrBytes int64
	// StdoutTail and StderrTail are kept, the last TailBytes of each; both nil
	// keeps none.
	StdoutTail []byte
	StderrTail []byte
	// Event, if not nil, is recorded with the end; its task and instance are
	// filled in.
	Event *Event
}

// TaskFilter selects tasks. Zero fields select all.
type TaskFilter struct {
	InstanceID string
	Status     TaskStatus
	Kind       TaskKind
	Limit      int
}

// InsertTask records a task that is about to be started, before it is: a
// process in a guest is never without a record. The instance must be usable
// as in LiveLease, judged in the same transaction.
func (s *Store) InsertTask(ctx context.Context, n NewTask) (Task, error) {
	var t Task
	err := s.write(ctx, "recording a task", func(ctx context.Context, tx *sql.Tx) error {
		l, err := leaseByID(ctx, tx, n.InstanceID)
		if err != nil {
			return err
		}
		if err := s.usable(l); err != nil {
			return err
		}
		if t, err = s.insertTask(ctx, tx, n); err != nil {
			return err
		}
		if n.Request.tracked() {
			return bindRequest(ctx, tx, n.Request, n.InstanceID, t.TaskID)
		}
		return nil
	})
	if err != nil {
		return Task{}, err
	}
	if n.Request.tracked() {
		n.Request.InstanceID, n.Request.TaskID = n.InstanceID, t.TaskID
	}
	return t, nil
}

func (s *Store) insertTask(ctx context.Context, tx *sql.Tx, n NewTask) (Task, error) {
	request := ""
	if n.Request != nil {
		request = n.Request.ID
	}
	for attempt := 1; ; attempt++ {
		id, err := s.newID("task_", 12)
		if err != nil {
			return Task{}, err
		}
		t, err := scanTask(tx.QueryRowContext(ctx, sqlInsertTask, id, n.InstanceID, n.Kind, n.Command, n.Cwd, n.User,
			stamp(s.now()), request, s.self.Session, s.self.Session, s.self.PID, s.self.Boot, s.self.Start))
		if !isUnique(err) || attempt == idAttempts {
			return t, err
		}
	}
}

// TaskStarted records that the guest has started a task. On a task that has
// finished meanwhile it fails like FinishTask.
func (s *Store) TaskStarted(ctx context.Context, taskID string, pid int64, startedAt time.Time, logPath string) (Task, error) {
	if startedAt.IsZero() {
		startedAt = s.now()
	}
	return s.changeTask(ctx, taskID, func(ctx context.Context, tx *sql.Tx) (Task, error) {
		return scanTask(tx.QueryRowContext(ctx, sqlTaskStarted, taskID, pid, stamp(startedAt), logPath))
	})
}

// RequestStop records, before a signal is sent, that a task is being stopped:
// however and by whomever its end is then recorded, it is stopped. first is
// false if somebody had asked before. On a finished task it fails like
// FinishTask.
func (s *Store) RequestStop(ctx context.Context, taskID string) (t Task, first bool, err error) {
	t, err = s.changeTask(ctx, taskID, func(ctx context.Context, tx *sql.Tx) (Task, error) {
		before, err := taskByID(ctx, tx, taskID)
		if err != nil {
			return before, err
		}
		first = before.StopRequestedAt.IsZero()
		return scanTask(tx.QueryRowContext(ctx, sqlRequestStop, taskID, stamp(s.now())))
	})
	return t, first && err == nil, err
}

// WithdrawStop takes RequestStop back, for a signal that was certainly not
// sent. On a finished task it fails like FinishTask.
func (s *Store) WithdrawStop(ctx context.Context, taskID string) (Task, error) {
	return s.changeTask(ctx, taskID, func(ctx context.Context, tx *sql.Tx) (Task, error) {
		return scanTask(tx.QueryRowContext(ctx, sqlWithdrawStop, taskID))
	})
}

// FinishTask records a task's end, once: a task that somebody asked to stop
// ends as stopped whatever e says. On a finished task nothing is
// written, the task is returned as it is, and the error is
// TASK_ALREADY_FINISHED. An unknown id is TASK_NOT_FOUND.
func (s *Store) FinishTask(ctx context.Context, taskID string, e TaskEnd) (Task, error) {
	switch e.Status {
	case TaskSucceeded, TaskFailed, TaskStopped:
	default:
		return Task{}, fault.New(fault.Internal, "a task cannot end as %q", e.Status)
	}
	at := e.FinishedAt
	if at.IsZero() {
		at = s.now()
	}
	return s.changeTask(ctx, taskID, func(ctx context.Context, tx *sql.Tx) (Task, error) {
		t, err := scanTask(tx.QueryRowContext(ctx, sqlFinishTask, taskID, e.Status, stamp(at), e.ExitCode, e.Signal,
			e.ErrorMessage, e.OutcomeUnknown, e.StdoutBytes, e.StderrBytes, stamp(e.StartedAt), e.PID, e.LogPath))
		if err != nil {
			return t, err
		}
		if e.StdoutTail != nil || e.StderrTail != nil {
			if err := s.putTails(ctx, tx, taskID, e.StdoutTail, e.StderrTail); err != nil {
				return t, err
			}
			t.HasTails = true
		}
		if e.Event != nil {
			ev := *e.Event
			ev.InstanceID, ev.TaskID = t.InstanceID, t.TaskID
			if err := s.addEvent(ctx, tx, ev); err != nil {
				return t, err
			}
		}
		return t, s.addEvent(ctx, tx, taskEvent(t))
	})
}

// changeTask runs a statement that changes a running task, and says why when
// it changed none.
func (s *Store) changeTask(ctx context.Context, taskID string, change func(context.Context, *sql.Tx) (Task, error)) (Task, error) {
	var t Task
	err := s.write(ctx, "changing a task", func(ctx context.Context, tx *sql.Tx) (err error) {
		t, err = change(ctx, tx)
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if t, err = taskByID(ctx, tx, taskID); err != nil {
			return err
		}
		return taskFinished(t)
	})
	return t, err
}

// endTasks ends what still runs in an instance whose VM is gone.
func (s *Store) endTasks(ctx context.Context, tx *sql.Tx, l Lease) error {
	why := fmt.Sprintf("the instance is %s", l.Status)
	if l.EndReason != "" {
		why += ": " + l.EndReason
	}
	ended, err := collect(ctx, tx, scanTask, sqlEndTasks, l.InstanceID, stamp(s.now()), why)
	if err != nil {
		return err
	}
	for _, t := range ended {
		if err := s.addEvent(ctx, tx, taskEvent(t)); err != nil {
			return err
		}
	}
	return nil
}

func taskEvent(t Task) Event {
	d := map[string]any{"kind": t.Kind}
	if t.ExitCode != nil {
		d["exit_code"] = *t.ExitCode
	}
	if t.Signal != "" {
		d["signal"] = t.Signal
	}
	outcome := OutcomeOK
	if t.OutcomeUnknown {
		outcome = string(fault.OutcomeUnknown)
	}
	return Event{InstanceID: t.InstanceID, TaskID: t.TaskID, What: "task_finished", From: string(TaskRunning), To: string(t.Status),
		Outcome: outcome, Detail: encode(d)}
}

// SaveTails keeps the last TailBytes of each stream, replacing earlier ones,
// and raises the totals; it may follow a task's end. An unknown id is
// TASK_NOT_FOUND.
func (s *Store) SaveTails(ctx context.Context, taskID string, stdout, stderr []byte, stdoutTotal, stderrTotal int64) error {
	return s.write(ctx, "saving a task's output", func(ctx context.Context, tx *sql.Tx) error {
		r, err := tx.ExecContext(ctx, sqlTaskTotals, taskID, stdoutTotal, stderrTotal)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			return taskNotFound(taskID)
		}
		return s.putTails(ctx, tx, taskID, stdout, stderr)
	})
}

func (s *Store) putTails(ctx context.Context, tx *sql.Tx, taskID string, stdout, stderr []byte) error {
	_, err := tx.ExecContext(ctx, sqlPutTails, taskID, stamp(s.now()), tail(stdout), tail(stderr))
	return err
}

// tail is the last TailBytes of b, never nil: the driver stores nil as NULL.
func tail(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b[max(0, len(b)-TailBytes):]
}

// Tails returns what is kept of a task's output: nil for both streams if
// nothing is, because the task never finished here or the tails were pruned.
func (s *Store) Tails(ctx context.Context, taskID string) (stdout, stderr []byte, err error) {
	err = s.reader.QueryRowContext(ctx, sqlTails, taskID).Scan(&stdout, &stderr)
	if errors.Is(err, sql.ErrNoRows) {
		_, err = s.Task(ctx, taskID)
		return nil, nil, err
	}
	return stdout, stderr, s.explain(err, "reading a task's output")
}

// Task returns one task. An unknown id is TASK_NOT_FOUND.
func (s *Store) Task(ctx context.Context, taskID string) (Task, error) {
	t, err := taskByID(ctx, s.reader, taskID)
	return t, s.explain(err, "reading a task")
}

// Tasks returns the tasks a filter selects, newest first.
func (s *Store) Tasks(ctx context.Context, f TaskFilter) ([]Task, error) {
	all, err := collect(ctx, s.reader, scanTask, sqlTasks, f.InstanceID, f.Status, f.Kind, limit(f.Limit))
	return all, s.explain(err, "listing tasks")
}

func taskByID(ctx context.Context, q querier, id string) (Task, error) {
	t, err := scanTask(q.QueryRowContext(ctx, sqlTaskByID, id))
	if errors.Is(err, sql.ErrNoRows) {
		err = taskNotFound(id)
	}
	return t, err
}

func taskNotFound(id string) *fault.Error {
	return fault.New(fault.TaskNotFound, "there is no task %q", id).
		Because("the id is wrong, or the task's instance ended so long ago that its record was pruned").
		Next("call list_tasks and use a task_id from there").
		With("task_id", id)
}

func taskFinished(t Task) *fault.Error {
	e := fault.New(fault.TaskAlreadyFinished, "task %s has already finished: %s", t.TaskID, t.Status).
		Because("it ended at %s", t.FinishedAt.Format(time.RFC3339)).
		Next("read its output with get_task_logs; there is nothing left to stop").
		With("task_id", t.TaskID).With("status", string(t.Status))
	if t.ExitCode != nil {
		e.With("exit_code", *t.ExitCode)
	}
	return e
}
