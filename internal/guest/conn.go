package guest

//lint:file-ignore SA1019 x/net's HTTP/2 is frozen, not gone; the way to one given connection that net/http offers since Go 1.26 is yet to be measured here.

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"sandboxforge/internal/link"
)

// Conn is the link to one agent over one byte stream.
type Conn struct {
	link net.Conn
	h2   *http2.ClientConn

	once   sync.Once
	mu     sync.Mutex
	err    error
	closed chan struct{}
}

// Link health: the agent must answer an HTTP/2 ping within pingTimeout after
// idleBeforePing without a frame. Both are generous: a guest under emulation on
// a busy machine can be silent for seconds.
const (
	idleBeforePing = 30 * time.Second
	pingTimeout    = 30 * time.Second
)

// Connect opens the link on the host's end of a stream, waiting for the guest
// as long as ctx allows. It owns rwc: the stream is closed with the Conn, and
// when Connect fails.
func Connect(ctx context.Context, rwc io.ReadWriteCloser) (*Conn, error) {
	lc, err := link.Dial(ctx, rwc)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, &Error{Op: "connect", Kind: ErrUnavailable, Err: err}
	}
	c := &Conn{closed: make(chan struct{})}
	c.link = &watchedConn{Conn: lc, c: c}
	// The transport's own windows are 4 MiB a stream and 1 GiB a connection.
	t := &http2.Transport{
		AllowHTTP:        true,
		MaxReadFrameSize: 128 << 10,
		ReadIdleTimeout:  idleBeforePing,
		PingTimeout:      pingTimeout,
		// Bodies are never compressed: the link is faster than a compressor.
		DisableCompression: true,
	}
	c.h2, err = t.NewClientConn(c.link)
	if err != nil {
		c.end(err)
		return nil, &Error{Op: "connect", Kind: ErrUnavailable, Err: err}
	}
	return c, nil
}

// watchedConn notices when the transport gives the link up.
type watchedConn struct {
	net.Conn
	c *Conn
}

func (w *watchedConn) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if err != nil {
		w.c.end(err)
	}
	return n, err
}

func (w *watchedConn) Close() error {
	w.c.end(net.ErrClosed)
	return nil
}

func (c *Conn) end(err error) {
	c.once.Do(func() {
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		c.link.(*watchedConn).Conn.Close()
		close(c.closed)
	})
}

// RoundTripper sends requests over the link. Its errors say whether a request
// was sent; see Proxy.
func (c *Conn) RoundTripper() http.RoundTripper { return roundTripper{c} }

type roundTripper struct{ c *Conn }

// Over implements Finite: a Conn that has closed stays so.
func (r roundTripper) Over() bool {
	select {
	case <-r.c.closed:
		return true
	default:
		return false
	}
}

func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	select {
	case <-r.c.closed:
		closeBody(req)
		return nil, &unsentError{r.c.Err()}
	default:
	}
	if !r.c.h2.CanTakeNewRequest() {
		closeBody(req)
		return nil, &unsentError{net.ErrClosed}
	}
	return r.c.h2.RoundTrip(req)
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}

// unsentError is the failure of a request that never left.
type unsentError struct{ err error }

func (e *unsentError) Error() string   { return "the link to the guest is down: " + e.err.Error() }
func (e *unsentError) Unwrap() []error { return []error{errUnsent, e.err} }

// Client returns a client over the link.
func (c *Conn) Client() *Client { return NewClient(c.RoundTripper()) }

// Closed is closed when the link is over, by Close or because it broke.
func (c *Conn) Closed() <-chan struct{} { return c.closed }

// Err is why the link is over; nil before that.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the link: the guest is told, the stream is closed, and calls that
// are under way fail with ErrUnavailable.
func (c *Conn) Close() error {
	c.end(net.ErrClosed)
	c.h2.Close() //nolint:errcheck // the connection is closed already
	return nil
}
