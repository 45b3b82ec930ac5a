package guest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// Link keeps a Conn to an agent open. It is an http.RoundTripper that fails at
// once while there is no connection.
type Link struct {
	dial func(ctx context.Context) (io.ReadWriteCloser, error)
	log  *slog.Logger

	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	conn    *Conn
	paused  bool
	abort   context.CancelFunc // of the dial under way
	changed chan struct{}      // closed and replaced when conn or paused change
}

const (
	minRedial = 100 * time.Millisecond
	maxRedial = 2 * time.Second
)

// NewLink starts connecting. dial opens the stream; the handshake on it waits
// for the guest without a limit of its own.
func NewLink(dial func(ctx context.Context) (io.ReadWriteCloser, error), log *slog.Logger) *Link {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	l := &Link{dial: dial, log: log, done: make(chan struct{}), changed: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	go l.run()
	return l
}

func (l *Link) run() {
	defer close(l.done)
	wait := minRedial
	for l.ctx.Err() == nil {
		l.mu.Lock()
		paused, changed := l.paused, l.changed
		ctx, abort := context.WithCancel(l.ctx)
		l.abort = abort
		l.mu.Unlock()
		if paused {
			abort()
			select {
			case <-changed:
			case <-l.ctx.Done():
			}
			continue
		}
		c, err := l.connect(ctx)
		if err != nil {
			aborted := ctx.Err() != nil
			abort()
			if !aborted {
				l.log.Debug("no link to the guest", "error", err)
				select {
				case <-time.After(wait):
				case <-l.ctx.Done():
				}
				wait = min(2*wait, maxRedial)
			}
			continue
		}
		if !l.set(c) {
			abort()
			c.Close()
			continue
		}
		up := time.Now()
		l.log.Debug("linked to the guest")
		select {
		case <-c.Closed():
		case <-ctx.Done():
		}
		abort()
		l.set(nil)
		c.Close()
		l.log.Debug("the link to the guest ended", "error", c.Err())
		if time.Since(up) > maxRedial {
			wait = minRedial
		}
	}
}

func (l *Link) connect(ctx context.Context) (*Conn, error) {
	rwc, err := l.dial(ctx)
	if err != nil {
		return nil, err
	}
	return Connect(ctx, rwc)
}

// set publishes a connection or its end; it refuses one that came while the
// link was paused.
func (l *Link) set(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c != nil && l.paused {
		return false
	}
	l.conn = c
	l.signal()
	return true
}

func (l *Link) signal() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Conn returns the connection there is, or nil.
func (l *Link) Conn() *Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn
}

// Connected says whether there is a connection.
func (l *Link) Connected() bool { return l.Conn() != nil }

// WaitConnected waits for a connection, the end of ctx or Close.
func (l *Link) WaitConnected(ctx context.Context) error {
	for {
		l.mu.Lock()
		c, changed := l.conn, l.changed
		l.mu.Unlock()
		if c != nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.ctx.Done():
			return &Error{Op: "connect", Kind: ErrUnavailable, Err: errLinkClosed}
		}
	}
}

var errLinkClosed = errors.New("the link was closed")

// Pause closes the connection and keeps it closed, as is needed before a VM is
// paused and copied. It returns when the connection is closed.
func (l *Link) Pause() {
	l.mu.Lock()
	l.paused = true
	c := l.conn
	l.conn = nil
	if l.abort != nil {
		l.abort()
	}
	l.signal()
	l.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// Resume ends a Pause.
func (l *Link) Resume() {
	l.mu.Lock()
	l.paused = false
	l.signal()
	l.mu.Unlock()
}

// RoundTrip implements http.RoundTripper.
func (l *Link) RoundTrip(req *http.Request) (*http.Response, error) {
	c := l.Conn()
	if c == nil {
		closeBody(req)
		return nil, &unsentError{errors.New("not connected")}
	}
	return c.RoundTripper().RoundTrip(req)
}

// Close ends the link and waits for its goroutine.
func (l *Link) Close() error {
	l.cancel()
	l.mu.Lock()
	c := l.conn
	l.mu.Unlock()
	if c != nil {
		c.Close()
	}
	<-l.done
	return nil
}
