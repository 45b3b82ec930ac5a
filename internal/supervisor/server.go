package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/supervisor/supervisorv1"
	"sandboxforge/internal/supervisor/supervisorv1/supervisorv1connect"
	"sandboxforge/internal/version"
)

// ProtocolVersion is of the supervisor's socket. A client talks to its own and
// the previous version.
const ProtocolVersion = 1

// helloVersion is what both sides say; tests change it.
var helloVersion uint32 = ProtocolVersion

// Flow control of the socket. A stream's window is what a stalled receiver
// makes the other side buffer; the connection's window is never the bound, so
// that one stalled stream does not stop the others.
const (
	streamWindow = 1 << 20
	connWindow   = 1 << 30
	maxStreams   = 1000
	maxFrame     = 128 << 10
)

// linger is how long an ended supervisor waits for its callers to take their
// answers.
const linger = 2 * time.Second

// server serves a supervisor's socket.
type server struct {
	s    *supervisor
	http *http.Server
	done chan struct{}
	wg   sync.WaitGroup // of what serves beside the first listener
}

func newServer(s *supervisor, log *slog.Logger) *server {
	mux := http.NewServeMux()
	path, h := supervisorv1connect.NewSupervisorHandler(&service{s}, connect.WithReadMaxBytes(64<<10))
	mux.Handle(path, h)
	trim := &trimmer{}
	// A caller that leaves cancels its RPC in the guest: the proxied request's
	// context is that of the caller's stream.
	mux.Handle("/", trim.wrap(s.gate.wrap(guest.Proxy(s.roundTripper(), log))))
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return &server{s: s, done: make(chan struct{}), http: &http.Server{
		Handler:           mux,
		Protocols:         p,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReadFrameSize:              maxFrame,
			MaxReceiveBufferPerStream:     streamWindow,
			MaxReceiveBufferPerConnection: connWindow,
		},
	}}
}

func (v *server) serve(l net.Listener) {
	defer close(v.done)
	defer v.wg.Wait()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	v.wg.Go(func() { v.keepSocket(ctx, l.Addr().String()) })
	if err := v.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		v.s.log.Error("the socket cannot be served", "error", err)
		// Without its socket the VM could not be stopped by anybody.
		v.s.requestStop(stopRequest{reason: ReasonSignal, detail: "the supervisor lost its socket: " + err.Error()})
	}
}

// close stops listening (which removes the socket), gives callers time to take
// their answers, and waits for the server to be done.
func (v *server) close() {
	ctx, cancel := context.WithTimeout(context.Background(), linger)
	defer cancel()
	if v.http.Shutdown(ctx) != nil {
		v.http.Close()
	}
	<-v.done
}

// service implements the Supervisor service.
type service struct{ s *supervisor }

func (v *service) Hello(ctx context.Context, r *supervisorv1.HelloRequest) (*supervisorv1.HelloResponse, error) {
	v.s.log.Debug("hello", "client_version", r.BuildVersion, "protocol", r.ProtocolVersion)
	return &supervisorv1.HelloResponse{
		ProtocolVersion: helloVersion,
		BuildVersion:    version.String(),
		Pid:             int64(os.Getpid()),
		InstanceId:      v.s.opts.InstanceID,
		Name:            v.s.opts.Spec.Name,
		Dir:             v.s.opts.Dir,
	}, nil
}

func (v *service) GetStatus(context.Context, *supervisorv1.GetStatusRequest) (*supervisorv1.GetStatusResponse, error) {
	st, _ := v.s.status()
	return &supervisorv1.GetStatusResponse{Status: statusToProto(st)}, nil
}

func (v *service) Watch(ctx context.Context, _ *supervisorv1.WatchRequest, out *connect.ServerStream[supervisorv1.WatchResponse]) error {
	for {
		st, changed := v.s.status()
		if err := out.Send(&supervisorv1.WatchResponse{Status: statusToProto(st)}); err != nil {
			return err
		}
		if st.State == StateEnded {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

func (v *service) SetDeadline(_ context.Context, r *supervisorv1.SetDeadlineRequest) (*supervisorv1.SetDeadlineResponse, error) {
	if err := v.s.setDeadline(time.Unix(0, r.DeadlineUnixNs)); err != nil {
		code := connect.CodeInvalidArgument
		if errors.Is(err, ErrEnded) {
			code = connect.CodeFailedPrecondition
		}
		return nil, connect.NewError(code, errors.New(fault.From(err).Message))
	}
	return &supervisorv1.SetDeadlineResponse{}, nil
}

func (v *service) Stop(ctx context.Context, r *supervisorv1.StopRequest) (*supervisorv1.StopResponse, error) {
	reason := printable([]byte(r.Reason), 100)
	if reason == "" {
		reason = ReasonDestroyed
	}
	v.s.requestStop(stopRequest{reason: reason, grace: min(max(time.Duration(r.GraceNs), 0), time.Minute)})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-v.s.ended:
	}
	st, _ := v.s.status()
	return &supervisorv1.StopResponse{EndReason: st.EndReason, EndDetail: st.EndDetail}, nil
}

func (v *service) Console(_ context.Context, r *supervisorv1.ConsoleRequest) (*supervisorv1.ConsoleResponse, error) {
	n := r.MaxBytes
	if n <= 0 {
		n = 64 << 10
	}
	m := v.s.current()
	if m == nil {
		return &supervisorv1.ConsoleResponse{}, nil
	}
	return &supervisorv1.ConsoleResponse{Data: m.Console(int(min(n, 1<<20)))}, nil
}

// status is the board's, with what changes by itself.
func (s *supervisor) status() (Status, <-chan struct{}) {
	st, changed := s.board.get()
	st.Deadline, st.Remaining = s.deadline.get()
	return st, changed
}
