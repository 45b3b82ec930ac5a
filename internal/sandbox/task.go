package sandbox

import (
	"context"
	"errors"
	"sync"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/store"
)

// stopTaskGrace is what a task gets between SIGTERM and SIGKILL.
const stopTaskGrace = 5 * time.Second

// maxTaskWait bounds one waiting get_task_status.
const maxTaskWait = time.Hour

// StartBackgroundTask starts a command and returns when the guest runs it.
func (s *Service) StartBackgroundTask(ctx context.Context, r StartBackgroundTaskRequest) (*StartBackgroundTaskResult, error) {
	c := commandSpec{instanceID: r.InstanceID, command: r.Command, cwd: r.Cwd, env: r.Env}
	if err := c.check(); err != nil {
		return nil, err
	}
	id := r.RequestID
	r.RequestID = ""
	return once(ctx, s, "start_background_task", id, r, func(ctx context.Context, req *store.Request) (*StartBackgroundTaskResult, bool, error) {
		res, started, err := s.startTask(ctx, c, req)
		s.record(ctx, "start_background_task", r.InstanceID, taskIDOf(res), err, map[string]any{"command": clipText(r.Command, 500)})
		return res, started, err
	})
}

func taskIDOf(r *StartBackgroundTaskResult) string {
	if r == nil {
		return ""
	}
	return r.TaskID
}

func (s *Service) startTask(ctx context.Context, c commandSpec, req *store.Request) (*StartBackgroundTaskResult, bool, error) {
	var task store.Task
	var err error
	again := req != nil && req.TaskID != ""
	if again {
		// A process that died had begun this very start: what was started is
		// never started again.
		if task, err = s.store.Task(ctx, req.TaskID); err != nil {
			return nil, true, unsettled{err}
		}
		if !task.StartedAt.IsZero() {
			return startResult(task), true, nil
		}
		if task.Status.Finished() {
			return nil, true, fault.New(fault.OutcomeUnknown, "task %s was begun by a server process that died, and is %s", task.TaskID, task.Status).
				Because("%s", orText(task.ErrorMessage, "its start was not recorded")).
				With("task_id", task.TaskID).With("instance_id", task.InstanceID).With("status", string(task.Status)).
				Next("call get_task_status and get_task_logs for %s to see what it did", task.TaskID).
				Next("to start it once more, use a new request_id")
		}
	}
	l, g, err := s.bound(ctx, c.instanceID)
	if err != nil && again {
		return nil, true, unsettled{err}
	}
	if err != nil {
		return nil, false, err
	}
	if !again {
		task, err = s.store.InsertTask(ctx, store.NewTask{
			InstanceID: l.InstanceID, Kind: store.TaskBackground, Command: c.command, Cwd: c.cwd, Request: req,
		})
		if err != nil {
			return nil, false, err
		}
	}
	// Once the row is there the start is finished even if the caller leaves:
	// else a task could run that nobody was told of and that says it failed.
	work, cancel := detached(ctx, answerWithin)
	defer cancel()
	p, _, err := g.Start(work, task.TaskID, s.guestSpec(l, c))
	if unanswered(err) {
		return nil, true, fault.Wrap(err, fault.OutcomeUnknown, "the guest did not say within %v whether it started the task", answerWithin).
			Because("the guest hangs or is overloaded").
			With("task_id", task.TaskID).With("instance_id", l.InstanceID).
			Next("call get_task_status with task_id %s in a while", task.TaskID)
	}
	if err != nil {
		f := s.guestFault(context.WithoutCancel(ctx), l, "start_background_task", err)
		if fault.CodeOf(f) == fault.InvalidArgument {
			s.finishTask(ctx, task.TaskID, store.TaskEnd{Status: store.TaskFailed, ErrorMessage: err.Error(), FinishedAt: s.now()})
		}
		return nil, true, f
	}
	note, cancel := detached(ctx, 10*time.Second)
	defer cancel()
	task, err = s.store.TaskStarted(note, task.TaskID, int64(p.PID), p.StartedAt, p.SpoolPath)
	if err != nil && !fault.Is(err, fault.TaskAlreadyFinished) { // somebody saw its end already
		return nil, true, err
	}
	return startResult(task), true, nil
}

func startResult(t store.Task) *StartBackgroundTaskResult {
	return &StartBackgroundTaskResult{
		TaskID: t.TaskID, InstanceID: t.InstanceID, Status: string(t.Status), PID: int(t.PID), LogPath: t.LogPath,
	}
}

// GetTaskStatus says how a task is, after waiting for its end if that is
// asked. Cancelling the call ends the wait only.
func (s *Service) GetTaskStatus(ctx context.Context, r GetTaskStatusRequest) (*Task, error) {
	if !(r.WaitSeconds >= 0) {
		return nil, fault.New(fault.InvalidArgument, "wait_seconds is %v; it must be 0 or more", r.WaitSeconds)
	}
	wait := maxTaskWait
	if r.WaitSeconds < wait.Seconds() {
		wait = time.Duration(r.WaitSeconds * float64(time.Second))
	}
	t, err := s.refresh(ctx, r.TaskID, wait)
	if err != nil {
		return nil, err
	}
	return taskView(t), nil
}

// refresh returns a task as it really is: a row that says running is compared
// with the guest, for as long as wait if the process still runs.
func (s *Service) refresh(ctx context.Context, id string, wait time.Duration) (store.Task, error) {
	t, err := s.store.Task(ctx, id)
	if err != nil || t.Status != store.TaskRunning {
		return t, err
	}
	l, g, err := s.live(ctx, t.InstanceID)
	if err != nil {
		if f := fault.From(err); f.Code == fault.InstanceTerminal || f.Code == fault.InstanceLost {
			// Settling the lease settled its tasks.
			return s.store.Task(ctx, id)
		}
		return t, err
	}
	return s.settle(ctx, t, l, g, wait)
}

// settle brings the row of a running task up to what its guest says, after
// waiting as long as wait for its end.
func (s *Service) settle(ctx context.Context, t store.Task, l store.Lease, g *guest.Client, wait time.Duration) (store.Task, error) {
	id := t.TaskID
	deadline := time.Now().Add(wait)
	for {
		// Short waits, so that a waiting client hears that all is well and a
		// broken link is noticed.
		step := min(max(0, time.Until(deadline)), 5*time.Second)
		call, cancel := context.WithTimeout(ctx, step+answerWithin)
		p, err := g.Get(call, id, step)
		cancel()
		if errors.Is(err, guest.ErrNotFound) {
			return s.neverStarted(ctx, t)
		}
		if err != nil {
			f := s.silent(ctx, l, "the task's status", err)
			// Where the VM has ended, settling its lease settled the task.
			if now, serr := s.store.Task(context.WithoutCancel(ctx), id); serr == nil && now.Status != store.TaskRunning {
				return now, nil
			}
			return t, f
		}
		if p.Ended() {
			end := taskEnd(p)
			if p.TimedOut {
				end.Status = store.TaskStopped
			}
			// Also for a caller that leaves now, whoever looks next is told.
			note, cancel := detached(ctx, 10*time.Second)
			done, err := s.store.FinishTask(note, id, end)
			cancel()
			if err != nil && !fault.Is(err, fault.TaskAlreadyFinished) {
				return t, err
			}
			return done, nil
		}
		if t.StartedAt.IsZero() {
			if t, err = s.store.TaskStarted(ctx, id, int64(p.PID), p.StartedAt, p.SpoolPath); err != nil {
				if fault.Is(err, fault.TaskAlreadyFinished) {
					return s.store.Task(ctx, id)
				}
				return t, err
			}
		}
		if time.Until(deadline) <= 0 {
			return t, nil
		}
		report(ctx, Progress{Stage: "task", Message: "still running: " + clipText(t.Command, 120), Done: time.Since(p.StartedAt).Seconds()})
	}
}

// neverStartedAfter is how long a row may exist before its process does.
const neverStartedAfter = time.Minute

// neverStarted settles a row whose process the guest does not know. Another
// call may be about to start it; after a while nobody is.
func (s *Service) neverStarted(ctx context.Context, t store.Task) (store.Task, error) {
	if t.StartedAt.IsZero() && (s.store.Alive(t.Holder) && s.now().Sub(t.CreatedAt) < neverStartedAfter) {
		return t, nil
	}
	end := store.TaskEnd{Status: store.TaskFailed, FinishedAt: s.now(), ErrorMessage: "the guest never started it: the server that was to start it ended"}
	if !t.StartedAt.IsZero() {
		end.ErrorMessage = "the guest no longer knows it"
		end.OutcomeUnknown = true
	}
	done, err := s.store.FinishTask(ctx, t.TaskID, end)
	if fault.Is(err, fault.TaskAlreadyFinished) {
		err = nil
	}
	return done, err
}

// StopTask ends a task with every process it started, and says how it really
// ended. Cancelling the call does not call the stop off.
func (s *Service) StopTask(ctx context.Context, r StopTaskRequest) (*StopTaskResult, error) {
	t, err := s.refresh(ctx, r.TaskID, 0)
	if err != nil {
		return nil, err
	}
	if t.Status != store.TaskRunning {
		return nil, alreadyFinished(t)
	}
	l, g, err := s.live(ctx, t.InstanceID)
	if err != nil {
		return nil, err
	}
	work, cancel := detached(ctx, stopTaskGrace+answerWithin)
	defer cancel()
	// Before the signal: whoever sees the end first, in whatever process, then
	// records that the task was stopped.
	t, first, err := s.store.RequestStop(work, t.TaskID)
	if err != nil {
		if fault.Is(err, fault.TaskAlreadyFinished) {
			err = alreadyFinished(t)
		}
		return nil, err
	}
	report(ctx, Progress{Stage: "stop", Message: "stopping " + t.TaskID})

	p, err := stopProcess(work, g, t.TaskID, r.Force)
	if errors.Is(err, guest.ErrNotFound) {
		// It was not started yet, and now the guest refuses to start it.
		p, err = s.killedUnstarted(t.TaskID), nil
	}
	switch {
	case err == nil && !p.Ended():
		err = fault.New(fault.OutcomeUnknown, "task %s did not end although it was killed", t.TaskID).
			Because("a process is stuck in the guest's kernel").
			With("task_id", t.TaskID).
			Next("call get_task_status later, or destroy the instance")
	case unanswered(err):
		err = fault.Wrap(err, fault.OutcomeUnknown, "the guest did not confirm that task %s ended", t.TaskID).
			Because("the guest hangs or is overloaded").
			With("task_id", t.TaskID).
			Next("call stop_task again, with force, or destroy the instance")
	}
	if err != nil {
		s.unsent(ctx, t.TaskID, first, err)
		err = s.guestFault(context.WithoutCancel(ctx), l, "stop_task", err)
		s.record(ctx, "stop_task", t.InstanceID, t.TaskID, err, nil)
		return nil, err
	}
	end := taskEnd(p)
	end.Status = store.TaskStopped
	note, cancelNote := detached(ctx, 10*time.Second)
	defer cancelNote()
	done, err := s.store.FinishTask(note, t.TaskID, end)
	if err != nil && !fault.Is(err, fault.TaskAlreadyFinished) {
		return nil, err
	}
	s.record(ctx, "stop_task", t.InstanceID, t.TaskID, nil, map[string]any{"force": r.Force})
	v := taskView(done)
	return &StopTaskResult{TaskID: t.TaskID, InstanceID: t.InstanceID, Status: string(done.Status), ExitCode: v.ExitCode, Signal: v.Signal}, nil
}

func alreadyFinished(t store.Task) error {
	return fault.New(fault.TaskAlreadyFinished, "task %s has already finished: %s", t.TaskID, t.Status).
		With("task_id", t.TaskID).With("status", string(t.Status)).With("exit_code", t.ExitCode).
		Next("read its output with get_task_logs")
}

// stopProcess sends SIGTERM to the whole tree and, after the grace or at once
// with force, SIGKILL. A process that the guest does not know is killed too,
// so that it cannot be started any more; the error is still ErrNotFound.
func stopProcess(ctx context.Context, g *guest.Client, id string, force bool) (guest.Process, error) {
	if !force {
		p, err := g.Signal(ctx, id, sigTERM, true)
		if errors.Is(err, guest.ErrNotFound) {
			return stopProcess(ctx, g, id, true)
		}
		if err != nil || p.Ended() {
			return p, err
		}
		p, err = g.Get(ctx, id, stopTaskGrace)
		if err != nil || p.Ended() {
			// What the leader left behind in its tree goes too.
			if err == nil {
				_, _ = g.Signal(ctx, id, sigKILL, true)
			}
			return p, err
		}
	}
	if p, err := g.Signal(ctx, id, sigKILL, true); err != nil || p.Ended() {
		return p, err
	}
	return g.Get(ctx, id, 15*time.Second)
}

// maxListed bounds the tasks that one list_tasks returns.
const maxListed = 500

// ListTasks lists tasks, newest first, after asking the guests, briefly, what
// ended since somebody looked last. Where there are more than fit, the oldest
// are left out, those that run last of all.
func (s *Service) ListTasks(ctx context.Context, r ListTasksRequest) (*ListTasksResult, error) {
	f := store.TaskFilter{InstanceID: r.InstanceID, Limit: maxListed + 1}
	switch r.Status {
	case "", "running", "succeeded", "failed", "stopped":
		f.Status = store.TaskStatus(r.Status)
	default:
		return nil, fault.New(fault.InvalidArgument, "status is %q; it must be running, succeeded, failed or stopped", r.Status)
	}
	switch r.Kind {
	case "", "background":
		f.Kind = store.TaskBackground
	case "command":
		f.Kind = store.TaskCommand
	case "all":
	default:
		return nil, fault.New(fault.InvalidArgument, "kind is %q; it must be background, command or all", r.Kind)
	}
	if r.InstanceID != "" {
		if _, err := s.store.Lease(ctx, r.InstanceID); err != nil {
			return nil, err
		}
	}
	running := store.TaskFilter{InstanceID: f.InstanceID, Kind: f.Kind, Status: store.TaskRunning}
	rows, err := s.store.Tasks(ctx, running)
	if err != nil {
		return nil, err
	}
	s.settleTasks(ctx, rows)

	all, err := s.store.Tasks(ctx, f)
	if err != nil {
		return nil, err
	}
	truncated := len(all) > maxListed
	if truncated && f.Status == "" {
		running.Limit = maxListed + 1
		if rows, err = s.store.Tasks(ctx, running); err != nil {
			return nil, err
		}
		all = newestAndRunning(all, rows)
	}
	out := &ListTasksResult{Tasks: []Task{}, Truncated: truncated}
	for _, t := range all[:min(len(all), maxListed)] {
		out.Tasks = append(out.Tasks, *taskView(t))
	}
	return out, nil
}

// newestAndRunning is maxListed tasks, newest first: what runs, and the newest
// of the others. Both lists are newest first, and newest may lack the older
// ones of running.
func newestAndRunning(newest, running []store.Task) []store.Task {
	room := max(0, maxListed-len(running))
	listed := map[string]bool{}
	var all []store.Task
	for _, t := range newest {
		runs := t.Status == store.TaskRunning
		if !runs && room == 0 {
			continue
		}
		if !runs {
			room--
		}
		listed[t.TaskID] = true
		all = append(all, t)
	}
	for _, t := range running {
		if !listed[t.TaskID] {
			all = append(all, t)
		}
	}
	return all[:min(len(all), maxListed)]
}

// settleWithin bounds what list_tasks waits for a guest.
const settleWithin = 5 * time.Second

// settleTasks records what the guests say of running tasks, with one question
// for each instance, all at once. A guest that does not answer leaves its rows.
func (s *Service) settleTasks(ctx context.Context, rows []store.Task) {
	running := map[string][]store.Task{}
	for _, t := range rows {
		running[t.InstanceID] = append(running[t.InstanceID], t)
	}
	var wg sync.WaitGroup
	for id, tasks := range running {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, settleWithin)
			defer cancel()
			l, g, err := s.peek(ctx, id)
			if err != nil {
				return // if the VM is gone, this recorded the ends
			}
			ps, err := g.List(ctx)
			if err != nil {
				return
			}
			known := map[string]guest.Process{}
			for _, p := range ps {
				known[p.ID] = p
			}
			for _, t := range tasks {
				if p, ok := known[t.TaskID]; ok && !p.Ended() && !t.StartedAt.IsZero() {
					continue
				}
				if _, err := s.settle(ctx, t, l, g, 0); err != nil {
					s.log.Debug("task not settled", "task", t.TaskID, "error", err)
				}
			}
		})
	}
	wg.Wait()
}

func taskView(t store.Task) *Task {
	v := &Task{
		TaskID: t.TaskID, InstanceID: t.InstanceID, Kind: string(t.Kind), Command: t.Command, Status: string(t.Status),
		CreatedAt: isoTime(t.CreatedAt), StartedAt: stamp(t.StartedAt), FinishedAt: stamp(t.FinishedAt),
		ExitCode: t.ExitCode, LogPath: t.LogPath,
	}
	if t.PID != 0 {
		pid := int(t.PID)
		v.PID = &pid
	}
	if t.Signal != "" {
		v.Signal = &t.Signal
		if v.ExitCode == nil {
			v.ExitCode = shellCode(t.Signal)
		}
	}
	msg := t.ErrorMessage
	if t.OutcomeUnknown {
		if msg != "" {
			msg += "; "
		}
		msg += "how it ended is unknown"
	}
	if msg != "" {
		v.ErrorMessage = &msg
	}
	return v
}

// shellCode is 128+n for a signal's name.
func shellCode(name string) *int {
	for n, s := range signalNames {
		if s == name {
			c := 128 + n
			return &c
		}
	}
	return nil
}

// clipText bounds a text for a log or a message.
func clipText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	t, _ := toUTF8([]byte(s[:n]))
	return t + "…"
}
