package sandbox

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/store"
)

// Bounds of run_command.
const (
	defaultCommandTimeout = 600 * time.Second
	maxCommandTimeout     = 24 * time.Hour // beyond every lease
	defaultOutputBytes    = 64 << 10
	maxOutputBytes        = 4 << 20
	maxCommandBytes       = 128 << 10 // the kernel's bound on one argument
	maxStdinBytes         = 8 << 20
)

// commandSpec is a command as every tool that runs one describes it.
type commandSpec struct {
	instanceID string
	command    string
	cwd        string
	env        map[string]string
	stdin      *string
	user       string
}

// check refuses what the guest could not execute.
func (c commandSpec) check() error {
	bad := func(format string, args ...any) error { return fault.New(fault.InvalidArgument, format, args...) }
	switch {
	case strings.TrimSpace(c.command) == "":
		return bad("command is empty")
	case len(c.command) > maxCommandBytes:
		return bad("command has %d bytes; at most %d fit", len(c.command), maxCommandBytes).(*fault.Error).
			Next("copy a script into the VM with copy_to_instance and run that")
	case strings.ContainsRune(c.command, 0):
		return bad("command contains a NUL byte")
	case strings.ContainsRune(c.cwd, 0):
		return bad("cwd contains a NUL byte")
	case c.cwd != "" && !strings.HasPrefix(c.cwd, "/"):
		// Relative to the workspace; joined by the caller.
	case c.stdin != nil && len(*c.stdin) > maxStdinBytes:
		return bad("stdin has %d bytes; at most %d are taken", len(*c.stdin), maxStdinBytes).(*fault.Error).
			Next("copy the data into the VM as a file and redirect it")
	}
	for k, v := range c.env {
		if k == "" || strings.ContainsAny(k, "=\x00") || !utf8.ValidString(k) {
			return bad("env has the name %q", k)
		}
		if strings.ContainsRune(v, 0) {
			return bad("env %s has a NUL byte", k)
		}
	}
	return nil
}

// guestSpec is the process to start in the guest for c.
func (s *Service) guestSpec(l store.Lease, c commandSpec) guest.Spec {
	sp := guest.Spec{
		Command: c.command,
		Dir:     guestPath(l, c.cwd),
		Env:     c.env,
		User:    c.user,
	}
	if c.cwd == "" {
		sp.Dir = l.RemotePath // "" until a workspace was synced: the home directory
	}
	if c.stdin != nil {
		sp.Stdin = []byte(*c.stdin)
	}
	return sp
}

// RunCommand runs a command in an instance and waits for its end. A non-zero
// exit is a result, not an error. When the timeout passes or ctx is cancelled
// the command's whole process tree is killed.
func (s *Service) RunCommand(ctx context.Context, r RunCommandRequest) (*RunCommandResult, error) {
	timeout, err := commandTimeout(r.TimeoutSeconds)
	if err != nil {
		return nil, err
	}
	limit := orDefault(r.MaxOutputBytes, defaultOutputBytes)
	if limit < 1 || limit > maxOutputBytes {
		return nil, fault.New(fault.InvalidArgument, "max_output_bytes is %d; it must be from 1 to %d", limit, maxOutputBytes).
			Next("read more with get_task_logs")
	}
	c := commandSpec{instanceID: r.InstanceID, command: r.Command, cwd: r.Cwd, env: r.Env, stdin: r.Stdin, user: r.User}
	if err := c.check(); err != nil {
		return nil, err
	}
	id := r.RequestID
	r.RequestID = ""
	return once(ctx, s, "run_command", id, r, func(ctx context.Context, req *store.Request) (*RunCommandResult, bool, error) {
		res, started, err := s.runCommand(ctx, c, timeout, int(limit), req)
		if err != nil {
			return nil, started, err
		}
		return &RunCommandResult{InstanceID: r.InstanceID, CommandResult: *res}, true, nil
	})
}

func commandTimeout(seconds *float64) (time.Duration, error) {
	if seconds == nil {
		return defaultCommandTimeout, nil
	}
	v := *seconds
	if !(v > 0) { // NaN too
		return 0, fault.New(fault.InvalidArgument, "timeout_seconds is %v; it must be more than 0", v).
			Next("pass the number of seconds that the command may take")
	}
	if v >= maxCommandTimeout.Seconds() {
		return maxCommandTimeout, nil
	}
	return max(time.Millisecond, time.Duration(v*float64(time.Second))), nil
}

// runCommand starts and follows one command. started says whether the guest
// may have run it.
func (s *Service) runCommand(ctx context.Context, c commandSpec, timeout time.Duration, limit int, req *store.Request) (res *CommandResult, started bool, err error) {
	l, g, err := s.bound(ctx, c.instanceID)
	if err != nil {
		return nil, false, err
	}
	var task store.Task
	if req != nil && req.TaskID != "" {
		// A process that died had begun this very command: go on with it.
		if task, err = s.store.Task(ctx, req.TaskID); err != nil {
			return nil, true, err
		}
	} else {
		task, err = s.store.InsertTask(ctx, store.NewTask{
			InstanceID: l.InstanceID, Kind: store.TaskCommand, Command: c.command, Cwd: c.cwd, User: c.user, Request: req,
		})
		if err != nil {
			return nil, false, err
		}
	}
	sp := s.guestSpec(l, c)
	sp.Timeout = timeout

	out, errs := newClip(limit), newClip(limit)
	news := newestLine(ctx, c.command)
	p, err := g.Run(ctx, task.TaskID, sp, func(o guest.Output) {
		dst := out
		if o.Stream == guest.Stderr {
			dst = errs
		}
		if o.Dropped > 0 {
			dst.lost(int64(o.Dropped))
		}
		dst.write(o.Data)
		news.output(o.Data)
	})
	news.stop()

	cancelled := err != nil && ctx.Err() != nil
	if cancelled {
		p, err = s.kill(ctx, g, task.TaskID)
	}
	if err != nil && !cancelled {
		ferr := s.guestFault(ctx, l, "run_command", err)
		// The process may go on in the guest: its row stays running and is
		// settled by whoever looks next, unless it never began.
		if code := fault.CodeOf(ferr); code == fault.InvalidArgument {
			s.finishTask(ctx, task.TaskID, store.TaskEnd{Status: store.TaskFailed, ErrorMessage: err.Error(), FinishedAt: s.now()})
		}
		return nil, true, ferr
	}

	result := commandResult(c.command, task.TaskID, p, out, errs)
	end := taskEnd(p)
	if cancelled || p.TimedOut {
		end.Status = store.TaskStopped
	}
	if p.Ended() {
		s.finishTask(ctx, task.TaskID, end)
	}
	switch {
	case cancelled:
		f := fault.Wrap(context.Cause(ctx), fault.Cancelled, "the command was cancelled and its process tree killed").
			With("task_id", task.TaskID).With("partial", result)
		if !p.Ended() {
			f = fault.Wrap(err, fault.OutcomeUnknown, "the command was cancelled, but the guest did not confirm that it ended").
				With("task_id", task.TaskID).Next("call stop_task with task_id %s", task.TaskID)
		}
		return nil, true, f
	case p.TimedOut:
		return nil, true, fault.New(fault.CommandTimedOut, "the command ran longer than %v and its process tree was killed", timeout).
			Because("the command needs more time, waits for input, or hangs").
			With("instance_id", l.InstanceID).With("timeout_seconds", timeout.Seconds()).
			With("task_id", task.TaskID).With("partial", result).
			With("stdout", result.Stdout).With("stderr", result.Stderr).
			Next("pass a larger timeout_seconds, or use start_background_task and get_task_status").
			Next("read all of its output with get_task_logs and task_id %s", task.TaskID)
	case p.Status == guest.StatusLost:
		return nil, true, fault.New(fault.OutcomeUnknown, "the command ended, but how is unknown: %s", p.ErrorMessage).
			With("task_id", task.TaskID).With("partial", result)
	}
	return result, true, nil
}

// kill ends a process tree for a caller that went away, and says how it ended.
func (s *Service) kill(ctx context.Context, g *guest.Client, id string) (guest.Process, error) {
	ctx, cancel := detached(ctx, 15*time.Second)
	defer cancel()
	if _, err := g.Signal(ctx, id, sigKILL, true); err != nil && !errors.Is(err, guest.ErrNotFound) {
		return guest.Process{}, err
	}
	p, err := g.Get(ctx, id, 10*time.Second)
	if errors.Is(err, guest.ErrNotFound) {
		// It was cancelled before the guest heard of it.
		return guest.Process{ID: id, Status: guest.StatusSignaled, Signal: sigKILL, FinishedAt: s.now()}, nil
	}
	return p, err
}

// finishTask records a task's end, also when the caller has gone.
func (s *Service) finishTask(ctx context.Context, id string, end store.TaskEnd) {
	ctx, cancel := detached(ctx, 10*time.Second)
	defer cancel()
	if _, err := s.store.FinishTask(ctx, id, end); err != nil && !fault.Is(err, fault.TaskAlreadyFinished) {
		s.log.Warn("task end not recorded", "task", id, "error", err)
	}
}

// taskEnd is a process's end as the store keeps it.
func taskEnd(p guest.Process) store.TaskEnd {
	e := store.TaskEnd{
		Status:      store.TaskFailed,
		FinishedAt:  p.FinishedAt,
		StdoutBytes: int64(p.StdoutBytes), StderrBytes: int64(p.StderrBytes),
		ErrorMessage: p.ErrorMessage,
	}
	switch p.Status {
	case guest.StatusExited:
		code := p.ExitCode
		e.ExitCode = &code
		if code == 0 {
			e.Status = store.TaskSucceeded
		}
	case guest.StatusSignaled:
		e.Signal = signalName(p.Signal)
	case guest.StatusLost:
		e.OutcomeUnknown = true
	}
	if p.TimedOut && e.ErrorMessage == "" {
		e.ErrorMessage = "killed: its timeout passed"
	}
	return e
}

func commandResult(command, taskID string, p guest.Process, out, errs *clip) *CommandResult {
	r := &CommandResult{Command: command, TaskID: taskID, ExitCode: exitCode(p), Signal: signalName(p.Signal)}
	var ok1, ok2 bool
	r.Stdout, r.StdoutTruncated, ok1 = out.text()
	r.Stderr, r.StderrTruncated, ok2 = errs.text()
	r.NotUTF8 = !ok1 || !ok2
	r.StdoutBytes, r.StderrBytes = out.total, errs.total
	if p.Ended() && !p.StartedAt.IsZero() {
		r.DurationMS = max(0, p.FinishedAt.Sub(p.StartedAt).Milliseconds())
	}
	return r
}

// exitCode is the code a shell would show: 128+n for a signal.
func exitCode(p guest.Process) int {
	switch p.Status {
	case guest.StatusExited:
		return p.ExitCode
	case guest.StatusSignaled:
		return 128 + p.Signal
	default:
		return -1
	}
}
