package sandbox

import (
	"context"
	"errors"
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
	l, g, err := s.bound(ctx, c.instanceID)
	if err != nil {
		return nil, false, err
	}
	var task store.Task
	if req != nil && req.TaskID != "" {
		task, err = s.store.Task(ctx, req.TaskID)
	} else {
		task, err = s.store.InsertTask(ctx, store.NewTask{
			InstanceID: l.InstanceID, Kind: store.TaskBackground, Command: c.command, Cwd: c.cwd, Request: req,
		})
	}
	if err != nil {
		return nil, false, err
	}
	// Once the row is there the start is finished even if the caller leaves:
	// else a task could run that nobody was told of and that says it failed.
	work, cancel := detached(ctx, 30*time.Second)
	defer cancel()
	p, _, err := g.Start(work, task.TaskID, s.guestSpec(l, c))
	if err != nil {
		f := s.guestFault(work, l, "start_background_task", err)
		if fault.CodeOf(f) == fault.InvalidArgument {
			s.finishTask(work, task.TaskID, store.TaskEnd{Status: store.TaskFailed, ErrorMessage: err.Error(), FinishedAt: s.now()})
		}
		return nil, true, f
	}
	if task, err = s.store.TaskStarted(work, task.TaskID, int64(p.PID), p.StartedAt, p.SpoolPath); err != nil {
		return nil, true, err
	}
	return &StartBackgroundTaskResult{
		TaskID: task.TaskID, InstanceID: l.InstanceID, Status: string(store.TaskRunning), PID: p.PID, LogPath: p.SpoolPath,
	}, true, nil
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
	deadline := time.Now().Add(wait)
	for {
		// Short waits, so that a waiting client hears that all is well and a
		// broken link is noticed.
		step := min(max(0, time.Until(deadline)), 5*time.Second)
		p, err := g.Get(ctx, id, step)
		if errors.Is(err, guest.ErrNotFound) {
			return s.neverStarted(ctx, t)
		}
		if err != nil {
			f := s.guestFault(ctx, l, "the task's status", err)
			// Where the VM has ended, settling its lease settled the task.
			if now, serr := s.store.Task(context.WithoutCancel(ctx), id); serr == nil && now.Status != store.TaskRunning {
				return now, nil
			}
			return t, f
		}
		if p.Ended() {
			end := taskEnd(p)
			if p.TimedOut || s.stopping(id) {
				end.Status = store.TaskStopped
			}
			done, err := s.store.FinishTask(ctx, id, end)
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
		return nil, fault.New(fault.TaskAlreadyFinished, "task %s has already finished: %s", t.TaskID, t.Status).
			With("task_id", t.TaskID).With("status", string(t.Status)).With("exit_code", t.ExitCode).
			Next("read its output with get_task_logs")
	}
	l, g, err := s.live(ctx, t.InstanceID)
	if err != nil {
		return nil, err
	}
	s.markStopping(t.TaskID)
	defer s.unmarkStopping(t.TaskID)
	work, cancel := detached(ctx, stopTaskGrace+30*time.Second)
	defer cancel()
	report(ctx, Progress{Stage: "stop", Message: "stopping " + t.TaskID})

	p, err := stopProcess(work, g, t.TaskID, r.Force)
	if err == nil && !p.Ended() {
		err = fault.New(fault.OutcomeUnknown, "task %s did not end although it was killed", t.TaskID).
			Because("a process is stuck in the guest's kernel").
			Next("call get_task_status later, or destroy the instance")
	}
	if err != nil {
		err = s.guestFault(work, l, "stop_task", err)
		s.record(ctx, "stop_task", t.InstanceID, t.TaskID, err, nil)
		return nil, err
	}
	end := taskEnd(p)
	end.Status = store.TaskStopped
	done, err := s.store.FinishTask(work, t.TaskID, end)
	if err != nil && !fault.Is(err, fault.TaskAlreadyFinished) {
		return nil, err
	}
	s.record(ctx, "stop_task", t.InstanceID, t.TaskID, nil, map[string]any{"force": r.Force})
	v := taskView(done)
	return &StopTaskResult{TaskID: t.TaskID, InstanceID: t.InstanceID, Status: string(store.TaskStopped), ExitCode: v.ExitCode, Signal: v.Signal}, nil
}

// stopProcess sends SIGTERM to the whole tree and, after the grace or at once
// with force, SIGKILL.
func stopProcess(ctx context.Context, g *guest.Client, id string, force bool) (guest.Process, error) {
	if !force {
		p, err := g.Signal(ctx, id, sigTERM, true)
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

// ListTasks lists tasks, newest first, without asking the guests.
func (s *Service) ListTasks(ctx context.Context, r ListTasksRequest) (*ListTasksResult, error) {
	f := store.TaskFilter{InstanceID: r.InstanceID, Limit: 500}
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
	rows, err := s.store.Tasks(ctx, store.TaskFilter{InstanceID: f.InstanceID, Kind: f.Kind, Limit: f.Limit})
	if err != nil {
		return nil, err
	}
	// What ended since somebody looked last is only known to the guests.
	s.settleTasks(ctx, rows)
	out := &ListTasksResult{Tasks: []Task{}}
	for _, t := range rows {
		if f.Status == "" || t.Status == f.Status {
			out.Tasks = append(out.Tasks, *taskView(t))
		}
	}
	return out, nil
}

// settleTasks updates running rows in place from what the guests say, one
// question for each instance. A guest that does not answer leaves its rows.
func (s *Service) settleTasks(ctx context.Context, rows []store.Task) {
	running := map[string][]int{}
	for i, t := range rows {
		if t.Status == store.TaskRunning {
			running[t.InstanceID] = append(running[t.InstanceID], i)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for id, at := range running {
		_, g, err := s.live(ctx, id)
		if err == nil {
			var ps []guest.Process
			if ps, err = g.List(ctx); err == nil {
				ended := map[string]bool{}
				for _, p := range ps {
					ended[p.ID] = p.Ended()
				}
				for _, i := range at {
					if ended[rows[i].TaskID] {
						if t, err := s.refresh(ctx, rows[i].TaskID, 0); err == nil {
							rows[i] = t
						}
					}
				}
				continue
			}
		}
		for _, i := range at {
			if t, err := s.store.Task(ctx, rows[i].TaskID); err == nil {
				rows[i] = t
			}
		}
	}
}

// markStopping notes that stop_task is ending a process, so that whoever
// notices its end first calls it stopped and not failed.
func (s *Service) markStopping(id string) {
	s.stopMu.Lock()
	defer s.stopMu.Unlock()
	if s.stopped == nil {
		s.stopped = map[string]int{}
	}
	s.stopped[id]++
}

func (s *Service) unmarkStopping(id string) {
	s.stopMu.Lock()
	defer s.stopMu.Unlock()
	if s.stopped[id]--; s.stopped[id] <= 0 {
		delete(s.stopped, id)
	}
}

func (s *Service) stopping(id string) bool {
	s.stopMu.Lock()
	defer s.stopMu.Unlock()
	return s.stopped[id] > 0
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
