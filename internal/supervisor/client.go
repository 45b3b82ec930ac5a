package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"time"

	"connectrpc.com/connect"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/supervisor/supervisorv1"
	"sandboxforge/internal/supervisor/supervisorv1/supervisorv1connect"
	"sandboxforge/internal/version"
)

// helloTimeout bounds the first exchange.
const helloTimeout = 5 * time.Second

// Hello is what a supervisor says of itself.
type Hello struct {
	ProtocolVersion int
	BuildVersion    string
	PID             int
	InstanceID      string
	Name            string
	Dir             string
}

// Client talks to one supervisor. Its methods may be called concurrently.
// After the supervisor has ended they fail with ErrNotRunning.
type Client struct {
	hello     Hello
	path      string
	transport *http.Transport
	guest     *guest.Client
	rpc       supervisorv1connect.SupervisorClient
}

// Dial connects to the supervisor of the VM name. The error is ErrNotRunning
// if there is none and ErrVersion if it speaks another protocol.
func Dial(ctx context.Context, runDir, name string) (*Client, error) {
	path := socketPath(runDir, name)
	if err := checkSocketPath(path); err != nil {
		return nil, err
	}
	return dialSocket(ctx, path)
}

func dialSocket(ctx context.Context, path string) (*Client, error) {
	c := &Client{path: path}
	c.transport = guest.DialHTTP2(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	})
	// No bound for the connection: a stalled stream must not stop others.
	c.transport.HTTP2 = &http.HTTP2Config{
		MaxReadFrameSize:              maxFrame,
		MaxReceiveBufferPerStream:     streamWindow,
		MaxReceiveBufferPerConnection: connWindow,
	}
	c.guest = guest.NewClient(guestTransport{c.transport, path})
	c.rpc = supervisorv1connect.NewSupervisorClient(&http.Client{Transport: c.transport}, "http://supervisor", connect.WithReadMaxBytes(4<<20))
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	hello := &supervisorv1.HelloRequest{ProtocolVersion: helloVersion, BuildVersion: version.String()}
	h, err := c.rpc.Hello(ctx, hello)
	if err != nil && ctx.Err() == nil && !notRunning(err) {
		// One that ends resets connections it had not accepted yet; by now
		// nobody listens any more.
		h, err = c.rpc.Hello(ctx, hello)
	}
	if err != nil {
		c.Close()
		if notRunning(err) {
			return nil, c.gone()
		}
		if ctx.Err() != nil {
			return nil, fault.Wrap(err, fault.RuntimeNotReady, "the supervisor at %s does not answer", path).
				Because("its process is stopped, or the host is overloaded").
				Next("try again; if it stays so, destroy the instance")
		}
		return nil, fault.Wrap(err, fault.RuntimeNotReady, "what listens at %s is not a supervisor", path).
			Next("find the process that listens there (`ss -xlp`) and end it, or use another run directory")
	}
	c.hello = Hello{
		ProtocolVersion: int(h.ProtocolVersion), BuildVersion: h.BuildVersion, PID: int(h.Pid),
		InstanceID: h.InstanceId, Name: h.Name, Dir: h.Dir,
	}
	if v := h.ProtocolVersion; v != helloVersion && v+1 != helloVersion {
		c.Close()
		return nil, fault.Wrap(ErrVersion, fault.BackendUnavailable,
			"the supervisor of %q (build %s, pid %d) speaks protocol version %d; this build (%s) speaks %d and its predecessor",
			h.Name, h.BuildVersion, h.Pid, v, version.String(), helloVersion).
			Because("the instance was started by another build of SandboxForge").
			Next("use the build that started the instance, or wait for its expiry").
			Next("or end it with `kill %d`", h.Pid)
	}
	return c, nil
}

// guestTransport reaches the agent through the supervisor's socket.
type guestTransport struct {
	*http.Transport
	path string
}

// Over implements guest.Finite: a supervisor that has ended never comes back,
// and calls that wait for its link must not wait for ever.
func (t guestTransport) Over() bool {
	c, err := net.DialTimeout("unix", t.path, time.Second)
	if err == nil {
		c.Close()
		return false
	}
	return notRunning(err)
}

// notRunning: nobody listens at the socket.
func notRunning(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || isConnRefused(err)
}

func (c *Client) gone() error {
	return fault.Wrap(ErrNotRunning, fault.InstanceLost, "no supervisor answers at %s", c.path)
}

// Hello returns what the supervisor said at the first exchange.
func (c *Client) Hello() Hello { return c.hello }

// Close drops idle connections. RPCs that run go on.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Guest is the guest protocol, proxied by the supervisor. Its calls fail with
// guest.ErrUnavailable at once while the supervisor has no link to the agent.
func (c *Client) Guest() *guest.Client { return c.guest }

// GuestTransport is what Guest sends its requests with.
func (c *Client) GuestTransport() http.RoundTripper { return guestTransport{c.transport, c.path} }

// Status returns the VM's state as it is now.
func (c *Client) Status(ctx context.Context) (Status, error) {
	r, err := c.rpc.GetStatus(ctx, &supervisorv1.GetStatusRequest{})
	if err != nil {
		return Status{}, c.fail(ctx, err, "the VM's status cannot be read")
	}
	return statusFromProto(r.Status), nil
}

// Watch calls f with the VM's state at once and after each change, newest
// wins, until f returns false (Watch returns nil), the VM has ended (nil, after
// f saw StateEnded), or ctx ends.
func (c *Client) Watch(ctx context.Context, f func(Status) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Watch(ctx, &supervisorv1.WatchRequest{})
	if err != nil {
		return c.fail(ctx, err, "the VM cannot be watched")
	}
	defer stream.Close()
	for stream.Receive() {
		st := statusFromProto(stream.Msg().Status)
		if !f(st) || st.State == StateEnded {
			return nil
		}
	}
	if err := stream.Err(); err != nil {
		return c.fail(ctx, err, "the VM cannot be watched any more")
	}
	return c.gone() // the stream ended without saying so
}

// WaitReady returns nil when the VM is ready, and a fault that is ErrEnded
// when it ended instead; progress is told about each step and about the
// console's newest line. When ctx ends the boot goes on.
func (c *Client) WaitReady(ctx context.Context, progress backend.Progress) error {
	var last Status
	told := ""
	err := c.Watch(ctx, func(st Status) bool {
		last = st
		message := st.Message
		if st.State == StateBooting && st.LastConsole != "" {
			message += " | " + st.LastConsole
		}
		if m := st.Stage + "\x00" + message; m != told {
			told = m
			progress.Report(st.Stage, message)
		}
		return st.State == StateBooting || st.State == StateStopping
	})
	switch {
	case err == nil && last.State == StateReady:
		return nil
	case err == nil && last.State == StateEnded:
		if end, endErr := ReadEnd(c.hello.Dir); endErr == nil {
			return endFault(end)
		}
		return endFault(&End{Reason: last.EndReason, Detail: last.EndDetail})
	case ctx.Err() != nil:
		return fault.Wrap(context.Cause(ctx), fault.RuntimeNotReady, "the VM is not ready yet: %s", last.Message).
			With("last_console", last.LastConsole).
			Next("wait again; the boot goes on")
	}
	if end, endErr := ReadEnd(c.hello.Dir); endErr == nil {
		return endFault(end)
	}
	return err
}

// endFault is what a caller gets who wanted a VM that has ended.
func endFault(e *End) error {
	if e.Reason == ReasonBootFailed && e.Code != "" {
		f := fault.Wrap(ErrEnded, e.Code, "the host has no room for the VM").Because("%s", e.Detail)
		if e.Code == fault.InsufficientDisk {
			return f.Next("free space on the host's disk, or destroy instances that are not needed, and create the instance again")
		}
		return f.Next("free memory on the host, or destroy instances that are not needed, and create the instance again")
	}
	if e.Reason == ReasonBootFailed {
		f := fault.Wrap(ErrEnded, fault.RuntimeNotReady, "the VM did not boot").
			Because("%s", e.Detail).
			Next("create the instance again").
			Next("run `sandboxforge doctor` on the host if it happens again")
		if e.Console != "" {
			f.With("console", e.Console)
		}
		return f
	}
	return fault.Wrap(ErrEnded, fault.InstanceTerminal, "the VM has ended: %s", e.Reason).
		Because("%s", joinDetail(e.Reason, e.Detail))
}

// SetDeadline moves the moment at which the VM is taken down. A moment that
// has passed is refused with INVALID_ARGUMENT; a VM that is being taken down
// with ErrEnded.
func (c *Client) SetDeadline(ctx context.Context, t time.Time) error {
	_, err := c.rpc.SetDeadline(ctx, &supervisorv1.SetDeadlineRequest{DeadlineUnixNs: t.UnixNano()})
	return c.fail(ctx, err, "the deadline cannot be moved")
}

// Stop takes the VM down and returns when it is gone and its end recorded. An
// empty reason means ReasonDestroyed; a reason given earlier stays. With
// grace the guest may shut down in order first. When ctx ends, the stop goes
// on. Stopping a VM whose supervisor is gone is ErrNotRunning.
func (c *Client) Stop(ctx context.Context, reason string, grace time.Duration) error {
	_, err := c.rpc.Stop(ctx, &supervisorv1.StopRequest{Reason: reason, GraceNs: int64(grace)})
	if err == nil {
		return nil
	}
	if ctx.Err() == nil {
		// The supervisor may have left before its answer was through.
		if _, endErr := ReadEnd(c.hello.Dir); endErr == nil || errors.Is(endErr, ErrCorrupt) {
			return nil
		}
	}
	return c.fail(ctx, err, "the VM cannot be stopped")
}

// Console returns the newest bytes of the guest's console, at most max; 0
// means 64 KiB. They are the guest's: print them with care.
func (c *Client) Console(ctx context.Context, max int) ([]byte, error) {
	r, err := c.rpc.Console(ctx, &supervisorv1.ConsoleRequest{MaxBytes: int64(max)})
	if err != nil {
		return nil, c.fail(ctx, err, "the console cannot be read")
	}
	return r.Data, nil
}

// fail turns an RPC's error into a fault; nil stays nil.
func (c *Client) fail(ctx context.Context, err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf(format, args...)
	if ctx.Err() != nil {
		return fault.Wrap(context.Cause(ctx), fault.Cancelled, "%s: the caller gave up", what)
	}
	var ce *connect.Error
	if notRunning(err) {
		return c.gone()
	}
	if errors.As(err, &ce) {
		switch ce.Code() {
		case connect.CodeInvalidArgument:
			return fault.New(fault.InvalidArgument, "%s: %s", what, ce.Message())
		case connect.CodeFailedPrecondition:
			return fault.Wrap(ErrEnded, fault.InstanceTerminal, "%s: %s", what, ce.Message())
		}
	}
	if _, statErr := os.Lstat(c.path); errors.Is(statErr, fs.ErrNotExist) {
		return c.gone() // it ended while the call ran
	}
	return fault.Wrap(err, fault.RuntimeNotReady, "%s", what)
}
