package guest

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"syscall"
	"time"

	"sandboxforge/internal/guest/guestv1"
)

// Signals by their Linux numbers, which other systems' packages may not have.
const (
	SIGHUP  = syscall.Signal(1)
	SIGINT  = syscall.Signal(2)
	SIGQUIT = syscall.Signal(3)
	SIGKILL = syscall.Signal(9)
	SIGTERM = syscall.Signal(15)
)

// Status is the state of a process.
type Status string

// The states.
const (
	StatusRunning  Status = "running"
	StatusExited   Status = "exited"   // ExitCode is meaningful
	StatusSignaled Status = "signaled" // Signal is meaningful
	StatusLost     Status = "lost"     // it ended, but nobody saw how
)

// Stream names an output stream.
type Stream int

// The streams.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

// MaxStdin bounds Spec.Stdin.
const MaxStdin = 16 << 20

// Spec says what to run.
type Spec struct {
	Command    string            // run by sh -c, unless Argv is given
	Argv       []string          // Argv[0] is looked up in PATH
	Dir        string            // empty: the user's home; missing: ErrFailedPrecondition
	Env        map[string]string // added to the user's login environment
	User       string            // empty: sandbox; a name or a uid
	Stdin      []byte            // given whole, then closed, unless StdinOpen
	StdinOpen  bool              // stays open for Attach
	TTY        bool
	Rows, Cols uint32
	SpoolLimit uint64        // bytes per stream that are kept; 0: the agent's default
	Timeout    time.Duration // kills the process tree; 0: none
}

func (s Spec) proto() *guestv1.ProcessSpec {
	return &guestv1.ProcessSpec{
		Command: s.Command, Argv: s.Argv, Cwd: s.Dir, Env: s.Env, User: s.User, Stdin: s.Stdin, StdinOpen: s.StdinOpen,
		Tty: s.TTY, Rows: s.Rows, Cols: s.Cols, SpoolLimitBytes: s.SpoolLimit, TimeoutNs: max(int64(s.Timeout), 0),
	}
}

// Process is the state of a process.
type Process struct {
	ID            string
	Status        Status
	PID           int // in the guest; 0 if it could not be executed
	ExitCode      int
	Signal        int
	TimedOut      bool
	StartedAt     time.Time
	FinishedAt    time.Time // zero while it runs
	StdoutBytes   uint64    // written so far, dropped ones included
	StderrBytes   uint64
	StdoutDropped uint64
	StderrDropped uint64
	SpoolPath     string // directory in the guest with files stdout and stderr
	ErrorMessage  string // why it could not be executed (ExitCode 126 or 127) or was lost
	Spec          Spec   // without Stdin
}

// Ended says whether the process has ended.
func (p Process) Ended() bool { return p.Status != StatusRunning }

// Output is a piece of a stream.
type Output struct {
	Stream  Stream
	Offset  uint64 // of Data's first byte in the stream
	Data    []byte // valid during the callback
	Dropped uint64 // bytes right before Offset that the spool's bound has cost
}

// Offsets are positions in both streams.
type Offsets struct{ Stdout, Stderr uint64 }

func (o *Offsets) of(s Stream) *uint64 {
	if s == Stderr {
		return &o.Stderr
	}
	return &o.Stdout
}

// NewID makes a random process id.
func NewID(prefix string) string {
	var b [8]byte
	rand.Read(b[:])
	return prefix + hex.EncodeToString(b[:])
}

// process checks and converts the guest's description of a process.
func process(op, id string, p *guestv1.Process) (Process, error) {
	if p == nil {
		return Process{}, protocolError(op, "no process in the answer")
	}
	if id != "" && p.Id != id {
		return Process{}, protocolError(op, "asked for process %q, answered %.80q", id, p.Id)
	}
	status, ok := map[guestv1.ProcessStatus]Status{
		guestv1.ProcessStatus_PROCESS_STATUS_RUNNING:  StatusRunning,
		guestv1.ProcessStatus_PROCESS_STATUS_EXITED:   StatusExited,
		guestv1.ProcessStatus_PROCESS_STATUS_SIGNALED: StatusSignaled,
		guestv1.ProcessStatus_PROCESS_STATUS_LOST:     StatusLost,
	}[p.Status]
	if !ok || len(p.Id) > 64 || p.StdoutDropped > p.StdoutBytes || p.StderrDropped > p.StderrBytes || max(p.StdoutBytes, p.StderrBytes) > math.MaxInt64 {
		return Process{}, protocolError(op, "process %.80q in an impossible state", p.Id)
	}
	out := Process{
		ID: p.Id, Status: status, PID: int(p.Pid), ExitCode: int(p.ExitCode), Signal: int(p.Signal), TimedOut: p.TimedOut,
		StartedAt: time.Unix(0, p.StartedUnixNs), StdoutBytes: p.StdoutBytes, StderrBytes: p.StderrBytes,
		StdoutDropped: p.StdoutDropped, StderrDropped: p.StderrDropped,
		SpoolPath: line(p.SpoolPath), ErrorMessage: line(p.ErrorMessage),
	}
	if p.FinishedUnixNs != 0 {
		out.FinishedAt = time.Unix(0, p.FinishedUnixNs)
	}
	if s := p.Spec; s != nil {
		out.Spec = Spec{
			Command: s.Command, Argv: s.Argv, Dir: s.Cwd, Env: s.Env, User: s.User, StdinOpen: s.StdinOpen, TTY: s.Tty,
			Rows: s.Rows, Cols: s.Cols, SpoolLimit: s.SpoolLimitBytes, Timeout: time.Duration(s.TimeoutNs),
		}
	}
	return out, nil
}

func checkSpec(op string, spec Spec) error {
	if len(spec.Stdin) > MaxStdin {
		return &Error{Op: op, Kind: ErrInvalid, Err: fmt.Errorf("stdin of %d bytes; at most %d", len(spec.Stdin), MaxStdin)}
	}
	return nil
}

// Start starts a process under an id of the caller's choice
// ([A-Za-z0-9_.-]{1,64}). The same id again returns the process that has it and
// starts nothing, so Start is repeated while the link is down, until ctx ends.
func (c *Client) Start(ctx context.Context, id string, spec Spec) (p Process, existed bool, err error) {
	if err := checkSpec("start", spec); err != nil {
		return Process{}, false, err
	}
	for wait, tries := minRetry, 0; ; wait, tries = min(2*wait, maxRetry), tries+1 {
		r, err := c.procs.Start(ctx, &guestv1.StartRequest{Id: id, Spec: spec.proto()})
		if err == nil {
			p, err := process("start", id, r.Process)
			// An earlier attempt of this very call is not "existed".
			return p, r.Existed && tries == 0, err
		}
		err = fail(ctx, "start", true, err)
		if !errors.Is(err, ErrUnavailable) || c.over() {
			return Process{}, false, err
		}
		if perr := pause(ctx, wait); perr != nil {
			return Process{}, false, err
		}
	}
}

// followStream is what Run and Follow read.
type followStream interface {
	Receive() bool
	Msg() *guestv1.FollowResponse
	Err() error
	Close() error
}

// Run starts a process and follows it to its end; see Start and Follow.
func (c *Client) Run(ctx context.Context, id string, spec Spec, on func(Output)) (Process, error) {
	if err := checkSpec("run", spec); err != nil {
		return Process{}, err
	}
	return c.follow(ctx, "run", id, Offsets{}, on, func(ctx context.Context, off Offsets) (followStream, error) {
		if off == (Offsets{}) {
			return c.procs.Run(ctx, &guestv1.RunRequest{Id: id, Spec: spec.proto()})
		}
		return c.procs.Follow(ctx, &guestv1.FollowRequest{Id: id, StdoutOffset: off.Stdout, StderrOffset: off.Stderr})
	})
}

// Follow passes a process's output to on (which may be nil) and returns its
// final state once it has ended and all its output was passed on. Where the
// link breaks it goes on at the same offsets as soon as there is a link again.
//
// When ctx ends, Follow returns ctx's cause; the process goes on. A process
// that was lost is no error: its Status says so.
func (c *Client) Follow(ctx context.Context, id string, from Offsets, on func(Output)) (Process, error) {
	return c.follow(ctx, "follow", id, from, on, func(ctx context.Context, off Offsets) (followStream, error) {
		return c.procs.Follow(ctx, &guestv1.FollowRequest{Id: id, StdoutOffset: off.Stdout, StderrOffset: off.Stderr})
	})
}

func (c *Client) follow(ctx context.Context, op, id string, off Offsets, on func(Output), open func(context.Context, Offsets) (followStream, error)) (Process, error) {
	for wait := minRetry; ; {
		before := off
		p, done, err := c.followOnce(ctx, op, id, &off, on, open)
		if done {
			return p, err
		}
		if off != before {
			wait = minRetry
		}
		if c.over() {
			return Process{}, err
		}
		if perr := pause(ctx, wait); perr != nil {
			return Process{}, perr
		}
		wait = min(2*wait, maxRetry)
	}
}

// followOnce follows over one stream; done is false if another may follow on.
func (c *Client) followOnce(ctx context.Context, op, id string, off *Offsets, on func(Output), open func(context.Context, Offsets) (followStream, error)) (p Process, done bool, err error) {
	sctx, cancel := context.WithCancel(ctx)
	defer cancel()
	broken := func(err error) (Process, bool, error) {
		err = fail(ctx, op, op == "run", err)
		return Process{}, ctx.Err() != nil || !errors.Is(err, ErrUnavailable), err
	}
	stream, err := open(sctx, *off)
	if err != nil {
		return broken(err)
	}
	defer stream.Close()
	for stream.Receive() {
		ev, err := event(op, id, stream.Msg(), off)
		switch {
		case err != nil:
			return Process{}, true, err
		case ev.Output != nil:
			if on != nil {
				on(*ev.Output)
			}
		case ev.Ended != nil:
			return *ev.Ended, true, nil
		}
		if ctx.Err() != nil {
			return Process{}, true, context.Cause(ctx)
		}
	}
	if err := stream.Err(); err != nil {
		return broken(err)
	}
	return Process{}, true, protocolError(op, "the stream of process %q ended before the process", id)
}

// Event is one event of an Attachment; one field is set.
type Event struct {
	Started *Process
	Output  *Output
	Ended   *Process
}

// event checks and converts an event, and advances the offsets.
func event(op, id string, m *guestv1.FollowResponse, off *Offsets) (Event, error) {
	switch ev := m.Event.(type) {
	case *guestv1.FollowResponse_Started:
		p, err := process(op, id, ev.Started)
		return Event{Started: &p}, err
	case *guestv1.FollowResponse_Ended:
		p, err := process(op, id, ev.Ended)
		if err == nil && !p.Ended() {
			err = protocolError(op, "process %q has ended but is running", id)
		}
		return Event{Ended: &p}, err
	case *guestv1.FollowResponse_Output:
		o := ev.Output
		if o == nil || o.Stream != guestv1.Stream_STREAM_STDOUT && o.Stream != guestv1.Stream_STREAM_STDERR {
			return Event{}, protocolError(op, "output of no stream")
		}
		pos := off.of(Stream(o.Stream))
		if o.Offset < *pos || o.Offset-*pos != o.Dropped || o.Offset > math.MaxInt64-uint64(len(o.Data)) {
			return Event{}, protocolError(op, "output at offset %d with %d dropped, where %d was due", o.Offset, o.Dropped, *pos)
		}
		*pos = o.Offset + uint64(len(o.Data))
		return Event{Output: &Output{Stream: Stream(o.Stream), Offset: o.Offset, Data: o.Data, Dropped: o.Dropped}}, nil
	default:
		return Event{}, protocolError(op, "an empty event")
	}
}

// ReadRequest asks for a piece of a stream.
type ReadRequest struct {
	Stream    Stream
	Offset    uint64
	MaxBytes  uint64 // 0: 64 KiB; at most 1 MiB
	TailBytes uint64 // if set, Offset is ignored: the last so many bytes
}

// Chunk is a piece of a stream.
type Chunk struct {
	Data       []byte
	Offset     uint64 // later than asked if bytes were dropped
	NextOffset uint64
	TotalBytes uint64
	Dropped    uint64
	Ended      bool // the process has ended and NextOffset is the end
}

// Read returns a piece of a stream without waiting.
func (c *Client) Read(ctx context.Context, id string, req ReadRequest) (Chunk, error) {
	r, err := c.procs.Read(ctx, &guestv1.ReadRequest{
		Id: id, Stream: guestv1.Stream(req.Stream), Offset: req.Offset, MaxBytes: req.MaxBytes, TailBytes: req.TailBytes,
	})
	if err != nil {
		return Chunk{}, fail(ctx, "read output", false, err)
	}
	most := cmp.Or(req.TailBytes, req.MaxBytes, 64<<10)
	if r.NextOffset != r.Offset+uint64(len(r.Data)) || r.NextOffset < r.Offset || uint64(len(r.Data)) > min(most, 1<<20) ||
		max(r.NextOffset, r.TotalBytes, r.Dropped) > math.MaxInt64 || req.TailBytes == 0 && r.Offset < req.Offset {
		return Chunk{}, protocolError("read output", "%d bytes at %d with next offset %d", len(r.Data), r.Offset, r.NextOffset)
	}
	return Chunk{Data: r.Data, Offset: r.Offset, NextOffset: r.NextOffset, TotalBytes: r.TotalBytes, Dropped: r.Dropped, Ended: r.Ended}, nil
}

// Get returns the state of a process, after waiting for its end as long as
// wait says (the agent waits 5 minutes at most).
func (c *Client) Get(ctx context.Context, id string, wait time.Duration) (Process, error) {
	r, err := c.procs.Get(ctx, &guestv1.GetRequest{Id: id, WaitNs: max(int64(wait), 0)})
	if err != nil {
		return Process{}, fail(ctx, "get process", false, err)
	}
	return process("get process", id, r.Process)
}

// List returns every process that was not forgotten, oldest first.
func (c *Client) List(ctx context.Context) ([]Process, error) {
	r, err := c.procs.List(ctx, &guestv1.ListRequest{})
	if err != nil {
		return nil, fail(ctx, "list processes", false, err)
	}
	out := make([]Process, 0, len(r.Processes))
	for _, p := range r.Processes {
		conv, err := process("list processes", "", p)
		if err != nil {
			return nil, err
		}
		out = append(out, conv)
	}
	return out, nil
}

// Signal signals a process, or with tree all that it started. Signalling a
// process that has ended does nothing; its tree may still live.
func (c *Client) Signal(ctx context.Context, id string, sig syscall.Signal, tree bool) (Process, error) {
	r, err := c.procs.Signal(ctx, &guestv1.SignalRequest{Id: id, Signal: int32(sig), Tree: tree})
	if err != nil {
		return Process{}, fail(ctx, "signal", true, err)
	}
	return process("signal", id, r.Process)
}

// Forget removes an ended process and its spool. An unknown id is success.
func (c *Client) Forget(ctx context.Context, id string) error {
	_, err := c.procs.Forget(ctx, &guestv1.ForgetRequest{Id: id})
	err = fail(ctx, "forget", true, err)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}
