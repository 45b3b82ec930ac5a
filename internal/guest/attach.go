package guest

import (
	"context"
	"errors"
	"io"
	"sync"

	"connectrpc.com/connect"

	"sandboxforge/internal/guest/guestv1"
)

// Attachment is an interactive connection to a process. One goroutine calls
// Next, any may call the others. It does not survive a broken link: attach
// again at the offsets reached.
type Attachment struct {
	id     string
	ctx    context.Context
	cancel context.CancelFunc
	stream *connect.BidiStreamForClientSimple[guestv1.AttachRequest, guestv1.FollowResponse]
	off    Offsets
	ended  bool

	mu sync.Mutex // of sending
}

// Attach connects to a process's input and output. ctx governs the whole
// attachment; leaving changes nothing for the process.
func (c *Client) Attach(ctx context.Context, id string, from Offsets) (*Attachment, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.procs.Attach(ctx)
	if err != nil {
		cancel()
		return nil, fail(ctx, "attach", false, err)
	}
	// The transport does not look at ctx while it waits for more of a request.
	context.AfterFunc(ctx, func() { stream.CloseRequest() }) //nolint:errcheck // cancelled
	a := &Attachment{id: id, ctx: ctx, cancel: cancel, stream: stream, off: from}
	err = a.send(&guestv1.AttachRequest{Event: &guestv1.AttachRequest_Open{Open: &guestv1.AttachOpen{
		Id: id, StdoutOffset: from.Stdout, StderrOffset: from.Stderr,
	}}})
	if err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// Next returns the next event: Started first, Ended last, then io.EOF.
func (a *Attachment) Next() (Event, error) {
	if a.ended {
		return Event{}, io.EOF
	}
	m, err := a.stream.Receive()
	if err != nil {
		if errors.Is(err, io.EOF) {
			return Event{}, protocolError("attach", "the stream of process %q ended before the process", a.id)
		}
		return Event{}, fail(a.ctx, "attach", false, err)
	}
	ev, err := event("attach", a.id, m, &a.off)
	a.ended = ev.Ended != nil
	return ev, err
}

// Offsets are the positions reached, for attaching again.
func (a *Attachment) Offsets() Offsets { return a.off }

func (a *Attachment) send(m *guestv1.AttachRequest) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := a.stream.Send(m)
	if errors.Is(err, io.EOF) {
		return nil // the process has ended; Next says how
	}
	return fail(a.ctx, "attach", true, err)
}

// SendStdin sends input; it blocks while the process does not read.
func (a *Attachment) SendStdin(p []byte) error {
	const most = 32 << 10
	for len(p) > 0 {
		n := min(len(p), most)
		if err := a.send(&guestv1.AttachRequest{Event: &guestv1.AttachRequest_Stdin{Stdin: p[:n]}}); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// CloseStdin ends the input (on a terminal: sends end-of-transmission).
func (a *Attachment) CloseStdin() error {
	return a.send(&guestv1.AttachRequest{Event: &guestv1.AttachRequest_StdinClose{StdinClose: true}})
}

// Resize sets the terminal's size.
func (a *Attachment) Resize(rows, cols uint32) error {
	return a.send(&guestv1.AttachRequest{Event: &guestv1.AttachRequest_Window{Window: &guestv1.WindowSize{Rows: rows, Cols: cols}}})
}

// Signal signals the terminal's foreground process group, or the process where
// there is no terminal.
func (a *Attachment) Signal(sig int) error {
	return a.send(&guestv1.AttachRequest{Event: &guestv1.AttachRequest_Signal{Signal: int32(sig)}})
}

// Close leaves the process alone.
func (a *Attachment) Close() error {
	a.cancel()
	a.stream.CloseResponse() //nolint:errcheck // cancelled
	return nil
}
