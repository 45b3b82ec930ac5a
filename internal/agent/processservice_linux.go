package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"sandboxforge/internal/agent/shim"
	"sandboxforge/internal/guest/guestv1"
)

// processService is the Processes service.
type processService struct{ a *Agent }

const (
	// outputChunk bounds one Output event.
	outputChunk = 128 << 10
	readDefault = 64 << 10
	readMax     = 1 << 20
	maxWait     = 5 * time.Minute
)

func (s processService) Start(ctx context.Context, req *guestv1.StartRequest) (*guestv1.StartResponse, error) {
	p, existed, err := s.a.procs.start(ctx, req.Id, req.Spec)
	if err != nil {
		return nil, err
	}
	return &guestv1.StartResponse{Process: p.describe(), Existed: existed}, nil
}

func (s processService) Follow(ctx context.Context, req *guestv1.FollowRequest, out *connect.ServerStream[guestv1.FollowResponse]) error {
	p, err := s.a.procs.get(req.Id)
	if err != nil {
		return err
	}
	return follow(ctx, p, [2]uint64{req.StdoutOffset, req.StderrOffset}, out.Send)
}

func (s processService) Run(ctx context.Context, req *guestv1.RunRequest, out *connect.ServerStream[guestv1.FollowResponse]) error {
	p, _, err := s.a.procs.start(ctx, req.Id, req.Spec)
	if err != nil {
		return err
	}
	return follow(ctx, p, [2]uint64{}, out.Send)
}

// follow sends events until the process has ended and its output, up to what
// there was then, was sent.
func follow(ctx context.Context, p *process, off [2]uint64, send func(*guestv1.FollowResponse) error) error {
	select {
	case <-p.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.startErr != nil {
		return p.startErr
	}
	if err := send(&guestv1.FollowResponse{Event: &guestv1.FollowResponse_Started{Started: p.describe()}}); err != nil {
		return err
	}
	buf := make([]byte, 16<<10)
	for {
		changed := p.changes()
		end := p.ending()
		sent := false
		for i := range off {
			at, n, err := p.out[i].ReadAt(buf, off[i])
			if err != nil {
				return connect.NewError(connect.CodeInternal, fmt.Errorf("reading the spool: %w", err))
			}
			if end != nil {
				// What those wrote that the process left behind is not its output.
				limit := []uint64{end.StdoutEnd, end.StderrEnd}[i]
				if off[i] >= limit {
					continue
				}
				if at > limit {
					at, n = limit, 0
				}
				n = int(min(uint64(n), limit-at))
			}
			if n == 0 && at == off[i] {
				continue
			}
			if at < off[i] {
				return connect.NewError(connect.CodeInternal, errors.New("the spool went backwards"))
			}
			ev := &guestv1.Output{Stream: guestv1.Stream(i + 1), Offset: at, Data: buf[:n], Dropped: at - off[i]}
			if err := send(&guestv1.FollowResponse{Event: &guestv1.FollowResponse_Output{Output: ev}}); err != nil {
				return err
			}
			off[i] = at + uint64(n)
			sent = true
			if n == len(buf) && n < outputChunk {
				buf = make([]byte, outputChunk)
			}
		}
		if sent {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		if end != nil {
			return send(&guestv1.FollowResponse{Event: &guestv1.FollowResponse_Ended{Ended: p.describe()}})
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.r.a.ctx.Done():
			return connect.NewError(connect.CodeUnavailable, errors.New("the agent is ending"))
		}
	}
}

func (s processService) Attach(ctx context.Context, stream *connect.BidiStream[guestv1.AttachRequest, guestv1.FollowResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("the first message of Attach must be an open"))
	}
	p, err := s.a.procs.get(open.Id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	// Input has a connection of its own: a process that does not read holds it
	// up, and signals must still pass.
	input, err := dialShim(s.a.cfg.RunDir, p.id)
	if err == nil {
		defer input.Close()
		stop := context.AfterFunc(ctx, func() { input.Close() })
		defer stop()
		wg.Go(func() { drain(input) })
	}
	in := make(chan []byte, 16)
	wg.Go(func() {
		for b := range in {
			if input != nil {
				input.Write(b) //nolint:errcheck // the process has ended
			}
		}
	})
	// Receive ends when the handler returns: the server closes the body.
	go func() {
		defer close(in)
		for {
			req, err := stream.Receive()
			if err != nil {
				return
			}
			var msg []byte
			switch ev := req.Event.(type) {
			case *guestv1.AttachRequest_Stdin:
				msg = shim.AppendMessage(nil, shim.MsgStdin, ev.Stdin)
			case *guestv1.AttachRequest_StdinClose:
				msg = shim.AppendMessage(nil, shim.MsgStdinClose)
			case *guestv1.AttachRequest_Window:
				if w := ev.Window; w.Rows <= 0xffff && w.Cols <= 0xffff {
					var b [4]byte
					binary.LittleEndian.PutUint16(b[:], uint16(w.Rows))
					binary.LittleEndian.PutUint16(b[2:], uint16(w.Cols))
					p.send(shim.MsgWindow, b[:]...)
				}
				continue
			case *guestv1.AttachRequest_Signal:
				if ev.Signal > 0 && ev.Signal < 65 {
					p.signal(unix.Signal(ev.Signal), false, p.spec.GetTty()) //nolint:errcheck // nobody to tell
				}
				continue
			default:
				continue
			}
			select {
			case in <- msg:
			case <-ctx.Done():
				return
			}
		}
	}()
	return follow(ctx, p, [2]uint64{open.StdoutOffset, open.StderrOffset}, stream.Send)
}

// drain reads what a second connection is told, which the first one knows.
func drain(c net.Conn) { io.Copy(io.Discard, c) } //nolint:errcheck // see above

func (s processService) Read(_ context.Context, req *guestv1.ReadRequest) (*guestv1.ReadResponse, error) {
	p, err := s.ready(req.Id)
	if err != nil {
		return nil, err
	}
	if req.Stream != guestv1.Stream_STREAM_STDOUT && req.Stream != guestv1.Stream_STREAM_STDERR {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("no such stream"))
	}
	end := p.ending()
	sp := p.out[req.Stream-1]
	want := req.MaxBytes
	if want == 0 {
		want = readDefault
	}
	want = min(want, readMax)
	total := sp.C.Total.Load()
	off := req.Offset
	if req.TailBytes > 0 {
		n := min(req.TailBytes, readMax)
		off = total - min(n, total)
		want = max(n, 1)
	}
	buf := make([]byte, min(want, total-min(off, total)+1))
	at, n, err := sp.ReadAt(buf, off)
	if err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	at = max(at, off)
	runtime.KeepAlive(p) // its mapping holds the counters
	return &guestv1.ReadResponse{
		Data: buf[:n], Offset: at, NextOffset: at + uint64(n), TotalBytes: sp.C.Total.Load(),
		Dropped: at - off, Ended: end != nil && at+uint64(n) >= sp.C.Total.Load(),
	}, nil
}

func (s processService) ready(id string) (*process, error) {
	p, err := s.a.procs.get(id)
	if err != nil {
		return nil, err
	}
	<-p.ready
	return p, p.startErr
}

func (s processService) Get(ctx context.Context, req *guestv1.GetRequest) (*guestv1.GetResponse, error) {
	p, err := s.ready(req.Id)
	if err != nil {
		return nil, err
	}
	if wait := min(time.Duration(req.WaitNs), maxWait); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		for waiting := true; waiting; {
			changed := p.changes()
			if p.isEnded() {
				break
			}
			select {
			case <-changed:
			case <-timer.C:
				waiting = false
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	return &guestv1.GetResponse{Process: p.describe()}, nil
}

func (s processService) List(context.Context, *guestv1.ListRequest) (*guestv1.ListResponse, error) {
	s.a.procs.mu.Lock()
	procs := s.a.procs.list()
	s.a.procs.mu.Unlock()
	out := &guestv1.ListResponse{}
	for _, p := range procs {
		select {
		case <-p.ready:
			if p.startErr == nil {
				out.Processes = append(out.Processes, p.describe())
			}
		default: // being started
		}
	}
	return out, nil
}

func (s processService) Signal(_ context.Context, req *guestv1.SignalRequest) (*guestv1.SignalResponse, error) {
	if req.Signal == int32(unix.SIGKILL) && validID(req.Id) {
		s.a.procs.bury(req.Id)
	}
	p, err := s.ready(req.Id)
	if err != nil {
		return nil, err
	}
	if req.Signal <= 0 || req.Signal > 64 {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("no signal %d", req.Signal))
	}
	if err := p.signal(unix.Signal(req.Signal), req.Tree, false); err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return &guestv1.SignalResponse{Process: p.describe()}, nil
}

func (s processService) Forget(_ context.Context, req *guestv1.ForgetRequest) (*guestv1.ForgetResponse, error) {
	p, err := s.ready(req.Id)
	if err != nil {
		return nil, err
	}
	if !p.isEnded() {
		return nil, connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("process %q is running", req.Id))
	}
	s.a.procs.forget(p)
	return &guestv1.ForgetResponse{}, nil
}
