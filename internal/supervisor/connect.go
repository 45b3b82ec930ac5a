package supervisor

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"

	"sandboxforge/internal/link"
)

// connectAgent opens HTTP/2 over a link session on the stream, which it owns
// from the call on.
func connectAgent(ctx context.Context, rwc io.ReadWriteCloser) (agentConn, error) {
	nc, err := link.Dial(ctx, rwc)
	if err != nil {
		return nil, err
	}
	c := &linkConn{Conn: nc, closed: make(chan struct{})}
	var once sync.Once
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	c.transport = &http.Transport{
		Protocols:          p,
		DisableCompression: true,
		HTTP2:              &http.HTTP2Config{StrictMaxConcurrentRequests: true},
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			first := false
			once.Do(func() { first = true })
			if !first {
				c.Close()
				return nil, errors.New("the link to the guest agent was lost")
			}
			return c, nil
		},
	}
	return c, nil
}

// linkConn is closed as soon as one side of HTTP/2 fails.
type linkConn struct {
	net.Conn
	transport *http.Transport
	once      sync.Once
	closed    chan struct{}
}

func (c *linkConn) RoundTripper() http.RoundTripper { return c.transport }
func (c *linkConn) Closed() <-chan struct{}         { return c.closed }

func (c *linkConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		c.markClosed()
	}
	return n, err
}

func (c *linkConn) Close() error {
	c.markClosed()
	return c.Conn.Close()
}

func (c *linkConn) markClosed() { c.once.Do(func() { close(c.closed) }) }
