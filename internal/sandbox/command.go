package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	maxOutputBytes        = 1 << 20
	maxCommandBytes       = 128 << 10 // the kernel's bound on one argument
	maxStdinBytes         = 8 << 20
)

// How long a guest may leave calls unanswered; tests shorten these.
var (
	// commandSlack is what a command's timeout in the guest gets to take
	// effect and its output to come through, before the host gives up.
	commandSlack = 60 * time.Second
	// answerWithin bounds each other guest call, beyond what it asked to wait.
	answerWithin = 30 * time.Second
	// killWithin bounds the kill of a command that nobody waits for any more.
	killWithin = 15 * time.Second
)

// commandSpec is a command as every tool that runs one describes it.
type commandSpec struct {
	tool       string // for records; "" is run_command
	instanceID string
	command    string
	argv       []string // runs instead of command, which is then what is shown and recorded
	cwd        string
	env        map[string]string
	stdin      *string
	user       string
	// watch, if set, sees the output as it comes; otherwise its newest line is
	// reported as progress.
	watch func(guest.Output)
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
	for _, a := range c.argv {
		if strings.ContainsRune(a, 0) || len(a) > maxCommandBytes {
			return bad("an argument contains a NUL byte or more than %d bytes", maxCommandBytes)
		}
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
		Env:     withConnection(l, c.env),
		User:    c.user,
	}
	if c.argv != nil {
		sp.Command, sp.Argv = "", c.argv
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
	var task store.Task
	again := req != nil && req.TaskID != ""
	if again {
		// A process that died had begun this very command: go on with it.
		if task, err = s.store.Task(ctx, req.TaskID); err != nil {
			return nil, true, unsettled{err}
		}
		if task.Status.Finished() {
			res, err = s.recordedResult(ctx, task, limit)
			return res, true, err
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
			InstanceID: l.InstanceID, Kind: store.TaskCommand, Command: c.command, Cwd: c.cwd, User: c.user, Request: req,
		})
		if err != nil {
			return nil, false, err
		}
	}
	sp := s.guestSpec(l, c)
	sp.Timeout = timeout

	out, errs := newClip(limit), newClip(limit)
	watch, stop := c.watch, func() {}
	if watch == nil {
		news := newestLine(ctx, c.command)
		watch, stop = func(o guest.Output) { news.output(o.Data) }, news.stop
	}
	on := func(o guest.Output) {
		collect(out, errs, o)
		watch(o)
	}
	// The guest keeps the timeout; this one is for a guest that does not answer.
	work, cancel := context.WithTimeout(ctx, timeout+commandSlack)
	defer cancel()
	var p guest.Process
	if task.StartedAt.IsZero() {
		p, err = g.Run(work, task.TaskID, sp, on)
	} else {
		p, err = g.Follow(work, task.TaskID, guest.Offsets{}, on) // never a second time
	}
	stop()

	cancelled := err != nil && ctx.Err() != nil
	late := err != nil && !cancelled && (work.Err() != nil || unanswered(err))
	if cancelled || late {
		p, err = s.kill(ctx, g, task.TaskID)
	}
	ended := err == nil && p.Ended()
	result := commandResult(c.command, task.TaskID, p, out, errs)
	end := taskEnd(p)
	if cancelled || late || p.TimedOut {
		end.Status = store.TaskStopped
	}
	var f error
	switch {
	case (cancelled || late) && !ended:
		what := "the command was cancelled"
		if late {
			what = fmt.Sprintf("the command ran longer than %v", timeout)
		}
		f = fault.Wrap(err, fault.OutcomeUnknown, "%s, but the guest did not confirm that it ended", what).
			Because("the guest hangs or is overloaded").
			With("instance_id", l.InstanceID).With("task_id", task.TaskID).With("partial", result).
			Next("call stop_task with task_id %s", task.TaskID).
			Next("if that fails too, destroy the instance")
	case err != nil:
		f = s.guestFault(ctx, l, orText(c.tool, "run_command"), err)
		// The process may go on in the guest: its row stays running and is
		// settled by whoever looks next, unless it never began.
		if fault.CodeOf(f) == fault.InvalidArgument {
			ended = true
			end = store.TaskEnd{Status: store.TaskFailed, ErrorMessage: err.Error(), FinishedAt: s.now()}
		}
	case cancelled:
		f = fault.Wrap(context.Cause(ctx), fault.Cancelled, "the command was cancelled and its process tree killed").
			With("task_id", task.TaskID).With("partial", result)
	case late || p.TimedOut:
		e := fault.New(fault.CommandTimedOut, "the command ran longer than %v and its process tree was killed", timeout).
			Because("the command needs more time, waits for input, or hangs")
		if p.Status == guest.StatusExited && !p.TimedOut {
			e = fault.New(fault.CommandTimedOut, "the command ended with exit code %d, but the guest did not hand over its output within %v", p.ExitCode, timeout+commandSlack).
				Because("the guest hangs or is overloaded")
		}
		f = e.With("instance_id", l.InstanceID).With("timeout_seconds", timeout.Seconds()).
			With("task_id", task.TaskID).With("partial", result).
			With("stdout", result.Stdout).With("stderr", result.Stderr).
			Next("pass a larger timeout_seconds, or use start_background_task and get_task_status").
			Next("read all of its output with get_task_logs and task_id %s", task.TaskID)
	case p.Status == guest.StatusLost:
		f = fault.New(fault.OutcomeUnknown, "the command ended, but how is unknown: %s", p.ErrorMessage).
			With("task_id", task.TaskID).With("partial", result)
	}
	event := commandEvent(orText(c.tool, "run_command"), c.command, task, f)
	if ended {
		end.Event = &event
		s.finishTask(ctx, task.TaskID, end)
	} else {
		s.recordEvent(ctx, event)
	}
	if f != nil {
		return nil, true, f
	}
	return result, true, nil
}

// commandEvent is the event of a tool call that ran a command.
func commandEvent(what, command string, t store.Task, err error) store.Event {
	e := store.Event{InstanceID: t.InstanceID, TaskID: t.TaskID, What: what, Outcome: store.OutcomeOK}
	if err != nil {
		e.Outcome = string(fault.CodeOf(err))
	}
	e.Detail, _ = json.Marshal(map[string]any{"command": clipText(command, 500)}) // a string always encodes
	return e
}

// recordEvent is record for an event that is made already.
func (s *Service) recordEvent(ctx context.Context, e store.Event) {
	ctx, cancel := detached(ctx, 5*time.Second)
	defer cancel()
	if err := s.store.Record(ctx, e); err != nil {
		s.log.Warn("event not recorded", "what", e.What, "instance", e.InstanceID, "error", err)
	}
}

func collect(out, errs *clip, o guest.Output) {
	dst := out
	if o.Stream == guest.Stderr {
		dst = errs
	}
	if o.Dropped > 0 {
		dst.lost(int64(o.Dropped))
	}
	dst.write(o.Data)
}

// recordedResult is the result of a command that ended without its caller: a
// process that died had begun it, and somebody else saw the end. It is never
// run again.
func (s *Service) recordedResult(ctx context.Context, t store.Task, limit int) (*CommandResult, error) {
	unknown := fault.New(fault.OutcomeUnknown, "the command was begun by a server process that died, and is %s; its result cannot be told", t.Status).
		Because("%s", orText(t.ErrorMessage, "the end was recorded without its output")).
		With("task_id", t.TaskID).With("instance_id", t.InstanceID).With("status", string(t.Status)).
		Next("call get_task_status and get_task_logs for %s to see what it did", t.TaskID).
		Next("to run it once more, use a new request_id")
	if t.OutcomeUnknown || t.Status == store.TaskStopped || t.ExitCode == nil && t.Signal == "" {
		return nil, unknown
	}
	if !t.HasTails {
		if _, g, err := s.peek(ctx, t.InstanceID); err == nil {
			out, errs := newClip(limit), newClip(limit)
			work, cancel := context.WithTimeout(ctx, answerWithin)
			defer cancel()
			p, err := g.Follow(work, t.TaskID, guest.Offsets{}, func(o guest.Output) { collect(out, errs, o) })
			if err == nil && p.Status != guest.StatusLost {
				return commandResult(t.Command, t.TaskID, p, out, errs), nil
			}
		}
		var err error
		if t, err = s.store.Task(ctx, t.TaskID); err != nil {
			return nil, err
		}
		if !t.HasTails {
			return nil, unknown
		}
	}
	stdout, stderr, err := s.store.Tails(ctx, t.TaskID)
	if err != nil {
		return nil, err
	}
	out, errs := newClip(limit), newClip(limit)
	for _, k := range []struct {
		c     *clip
		data  []byte
		total int64
	}{{out, stdout, t.StdoutBytes}, {errs, stderr, t.StderrBytes}} {
		if gone := k.total - int64(len(k.data)); gone > 0 {
			k.c.lost(gone)
		}
		k.c.write(k.data)
	}
	v := taskView(t)
	r := commandResult(t.Command, t.TaskID, guest.Process{StartedAt: t.StartedAt, FinishedAt: t.FinishedAt}, out, errs)
	r.ExitCode, r.Signal = orDefault(v.ExitCode, -1), t.Signal
	return r, nil
}

func orText(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// kill ends a process tree for a caller that went away or waited too long, and
// says how it ended. An error says that this is not confirmed.
func (s *Service) kill(ctx context.Context, g *guest.Client, id string) (guest.Process, error) {
	ctx, cancel := detached(ctx, killWithin)
	defer cancel()
	_, first, err := s.store.RequestStop(ctx, id)
	if err != nil && !fault.Is(err, fault.TaskAlreadyFinished) {
		s.log.Warn("stop of a task not recorded", "task", id, "error", err)
	}
	if _, err := g.Signal(ctx, id, sigKILL, true); err != nil && !errors.Is(err, guest.ErrNotFound) {
		s.unsent(ctx, id, first, err)
		return guest.Process{}, err
	}
	p, err := g.Get(ctx, id, killWithin*2/3)
	if errors.Is(err, guest.ErrNotFound) {
		// It was cancelled before the guest heard of it, which now refuses it.
		return s.killedUnstarted(id), nil
	}
	return p, err
}

// killedUnstarted is how a process ended that was killed before it began.
func (s *Service) killedUnstarted(id string) guest.Process {
	return guest.Process{ID: id, Status: guest.StatusSignaled, Signal: sigKILL, FinishedAt: s.now()}
}

// unsent takes the mark of a stop back if err says that its signal was
// certainly not sent. first is what RequestStop returned.
func (s *Service) unsent(ctx context.Context, id string, first bool, err error) {
	if !first || !errors.Is(err, guest.ErrUnavailable) || errors.Is(err, guest.ErrOutcomeUnknown) {
		return
	}
	ctx, cancel := detached(ctx, 10*time.Second)
	defer cancel()
	if _, err := s.store.WithdrawStop(ctx, id); err != nil && !fault.Is(err, fault.TaskAlreadyFinished) {
		s.log.Warn("stop of a task not withdrawn", "task", id, "error", err)
	}
}

// unanswered reports whether a guest call ended because its own deadline passed:
// the guest knows the deadline too and may say so first.
func unanswered(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, guest.ErrTimeout)
}

// silent is guestFault for a call that had a deadline of its own within ctx: a
// guest that does not answer is no caller that cancelled.
func (s *Service) silent(ctx context.Context, l store.Lease, what string, err error) error {
	if unanswered(err) && ctx.Err() == nil {
		err = &guest.Error{Op: what, Kind: guest.ErrUnavailable, Err: err}
	}
	return s.guestFault(ctx, l, what, err)
}

// finishTask records a task's end, and its event even if somebody else had
// recorded the end, also when the caller has gone.
func (s *Service) finishTask(ctx context.Context, id string, end store.TaskEnd) {
	ctx, cancel := detached(ctx, 10*time.Second)
	defer cancel()
	_, err := s.store.FinishTask(ctx, id, end)
	switch {
	case fault.Is(err, fault.TaskAlreadyFinished):
		if end.Event != nil {
			s.recordEvent(ctx, *end.Event)
		}
	case err != nil:
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
		StartedAt:    p.StartedAt, PID: int64(p.PID), LogPath: p.SpoolPath,
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
