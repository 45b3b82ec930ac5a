package sandbox

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/store"
)

// ExecOptions describe an interactive command: streams instead of collected
// output. It is the command line's; MCP clients use RunCommand.
type ExecOptions struct {
	InstanceID string
	Argv       []string // at least one
	User, Cwd  string   // "" as in RunCommand
	Env        map[string]string
	// Stdin is streamed and its end closes the guest's; nil is empty input.
	// Exec does not wait for a Read that is blocked when the process ends.
	Stdin          io.Reader
	Stdout, Stderr io.Writer  // never nil; with a TTY everything comes on Stdout
	TTY            *TTY       // nil: pipes
	Signals        <-chan int // Linux signal numbers to forward; may be nil
}

// TTY asks for a terminal in the guest.
type TTY struct {
	Rows, Cols uint32
	Resize     <-chan WindowSize // may be nil
}

// WindowSize is a terminal's size in characters.
type WindowSize struct{ Rows, Cols uint32 }

// ExecResult is how an interactive command ended.
type ExecResult struct {
	InstanceID string `json:"instance_id"`
	ExitCode   int    `json:"exit_code"` // 128+n for a signal
	Signal     string `json:"signal,omitempty"`
	DurationMS int64  `json:"duration_ms"`
	// ErrorMessage says why the guest could not execute it at all; ExitCode is
	// then 126 or 127, and the command itself wrote nothing.
	ErrorMessage string `json:"error_message,omitempty"`
}

// Exec runs argv, without a shell, and returns when it ended and all of its
// output was written. Cancelling ctx kills the process tree.
func (s *Service) Exec(ctx context.Context, o ExecOptions) (*ExecResult, error) {
	if len(o.Argv) == 0 {
		return nil, fault.New(fault.InvalidArgument, "no command was given")
	}
	l, g, err := s.live(ctx, o.InstanceID)
	if err != nil {
		return nil, err
	}
	task, err := s.store.InsertTask(ctx, store.NewTask{
		InstanceID: l.InstanceID, Kind: store.TaskCommand, Command: shellQuote(o.Argv), Cwd: o.Cwd, User: o.User,
	})
	if err != nil {
		return nil, err
	}
	sp := s.guestSpec(l, commandSpec{cwd: o.Cwd, env: o.Env, user: o.User})
	sp.Command, sp.Argv = "", o.Argv
	sp.StdinOpen = o.Stdin != nil
	if o.TTY != nil {
		sp.TTY, sp.Rows, sp.Cols = true, o.TTY.Rows, o.TTY.Cols
	}
	p, err := s.execAttached(ctx, g, task.TaskID, sp, o)
	var end store.TaskEnd
	var f error
	var noOutput *outputError
	cancelled := err != nil && ctx.Err() != nil
	failed := errors.As(err, &noOutput)
	switch {
	case cancelled || failed:
		var kerr error
		p, kerr = s.kill(ctx, g, task.TaskID)
		end = taskEnd(p)
		end.Status = store.TaskStopped
		switch {
		case kerr != nil || !p.Ended():
			end.Status = ""
			f = fault.Wrap(errors.Join(err, kerr), fault.OutcomeUnknown, "the command was to be killed, but the guest did not confirm that it ended").
				With("task_id", task.TaskID).Next("call stop_task with task_id %s", task.TaskID)
		case cancelled:
			f = fault.Wrap(context.Cause(ctx), fault.Cancelled, "the command was cancelled and its process tree killed")
		default:
			f = fault.Wrap(noOutput.err, fault.Internal, "the command's output could not be written, and its process tree was killed").
				With("task_id", task.TaskID).
				Next("make room where the output goes, and run the command again")
		}
	case err != nil:
		f = s.guestFault(ctx, l, "exec", err)
		if fault.Is(f, fault.InvalidArgument) {
			end = store.TaskEnd{Status: store.TaskFailed, ErrorMessage: err.Error(), FinishedAt: s.now()}
		}
	default:
		end = taskEnd(p)
	}
	event := commandEvent("exec", shellQuote(o.Argv), task, f)
	if end.Status != "" {
		end.Event = &event
		s.finishTask(ctx, task.TaskID, end)
	} else {
		// It may go on in the guest: whoever looks next settles its row.
		s.recordEvent(ctx, event)
	}
	if f != nil {
		return nil, f
	}
	return &ExecResult{
		InstanceID: l.InstanceID, ExitCode: exitCode(p), Signal: signalName(p.Signal),
		DurationMS: max(0, p.FinishedAt.Sub(p.StartedAt).Milliseconds()), ErrorMessage: p.ErrorMessage,
	}, nil
}

// outputError is the caller's own stream that failed, not the guest.
type outputError struct{ err error }

func (e *outputError) Error() string { return "writing the output: " + e.err.Error() }
func (e *outputError) Unwrap() error { return e.err }

func (s *Service) execAttached(ctx context.Context, g *guest.Client, id string, sp guest.Spec, o ExecOptions) (guest.Process, error) {
	if _, _, err := g.Start(ctx, id, sp); err != nil {
		return guest.Process{}, err
	}
	at, err := g.Attach(ctx, id, guest.Offsets{})
	if err != nil {
		return guest.Process{}, err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer at.Close() // ends a send that is stuck
	feed, stop := context.WithCancel(ctx)
	defer stop()
	if o.Stdin != nil {
		// Not waited for: a Read of a terminal cannot be interrupted.
		go feedStdin(feed, at, o.Stdin)
	}
	wg.Go(func() {
		var resize <-chan WindowSize
		if o.TTY != nil {
			resize = o.TTY.Resize
		}
		signals := o.Signals
		for {
			select {
			case <-feed.Done():
				return
			case w, ok := <-resize:
				if !ok {
					resize = nil
					continue
				}
				_ = at.Resize(w.Rows, w.Cols) // a lost link shows in Next
			case n, ok := <-signals:
				if !ok {
					signals = nil
					continue
				}
				_ = at.Signal(n)
			}
		}
	})
	var seen guest.Offsets
	write := func(out guest.Output) error {
		w, off := o.Stdout, &seen.Stdout
		if out.Stream == guest.Stderr {
			w, off = o.Stderr, &seen.Stderr
		}
		*off = out.Offset + uint64(len(out.Data))
		// Nobody reads any more: that is for the caller, who may end it, to
		// decide.
		if _, err := w.Write(out.Data); err != nil && !errors.Is(err, syscall.EPIPE) {
			return &outputError{err}
		}
		return nil
	}
	for {
		ev, err := at.Next()
		switch {
		case errors.Is(err, io.EOF), err != nil && errors.Is(err, guest.ErrUnavailable) && ctx.Err() == nil:
			// The link broke: input is gone with it, output goes on.
			follow, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			p, err := g.Follow(follow, id, seen, func(out guest.Output) {
				if follow.Err() == nil {
					if werr := write(out); werr != nil {
						cancel(werr)
					}
				}
			})
			var noOutput *outputError
			if errors.As(context.Cause(follow), &noOutput) {
				err = noOutput
			}
			return p, err
		case err != nil:
			return guest.Process{}, err
		case ev.Output != nil:
			if err := write(*ev.Output); err != nil {
				return guest.Process{}, err
			}
		case ev.Ended != nil:
			return *ev.Ended, nil
		}
	}
}

func feedStdin(ctx context.Context, at *guest.Attachment, r io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if ctx.Err() != nil {
			return
		}
		if n > 0 && at.SendStdin(append([]byte(nil), buf[:n]...)) != nil {
			return
		}
		if err != nil {
			_ = at.CloseStdin()
			return
		}
	}
}
