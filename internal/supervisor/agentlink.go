package supervisor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"sandboxforge/internal/guest"
)

// errLinkDown is what RPCs get while there is no link.
var errLinkDown = fmt.Errorf("the link to the guest agent is down: %w", guest.ErrUnsent)

// agentLink keeps one link to the agent of one machine open: it dials, brings
// the guest into shape, pings, and begins anew when the link is lost.
type agentLink struct {
	dial   func(context.Context) (io.ReadWriteCloser, error)
	tuning Tuning
	log    *slog.Logger
	// prepare makes a new connection fit for callers. An error that is not
	// the link's own ends run.
	prepare func(ctx context.Context, c *guest.Client) error
	// onChange is told when the link comes up or goes down; must not block.
	onChange func(up bool)
	// proven: the guest was usable over a link before this one, so an error of
	// prepare passes.
	proven bool

	ready     chan struct{} // closed when the link first became usable
	readyOnce sync.Once

	mu   sync.Mutex
	conn *guest.Conn // nil while down
}

// RoundTrip sends a request over the link as it is now.
func (l *agentLink) RoundTrip(r *http.Request) (*http.Response, error) {
	c := l.current()
	if c == nil {
		return nil, errLinkDown
	}
	return c.RoundTripper().RoundTrip(r)
}

func (l *agentLink) current() *guest.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn
}

func (l *agentLink) set(c *guest.Conn) {
	l.mu.Lock()
	l.conn = c
	l.mu.Unlock()
	l.onChange(c != nil)
}

func (l *agentLink) wasReady() bool {
	if l.proven {
		return true
	}
	select {
	case <-l.ready:
		return true
	default:
		return false
	}
}

// run keeps the link until ctx ends, and returns ctx's error, or the error of
// prepare with which a guest that was never ready cannot be used.
func (l *agentLink) run(ctx context.Context) error {
	backoff := 20 * time.Millisecond
	for {
		began := time.Now()
		err := l.once(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var unfit *unfitError
		if errors.As(err, &unfit) && !l.wasReady() {
			return unfit.err
		}
		l.log.Debug("agent link", "error", err, "retry_in", backoff)
		if time.Since(began) > l.tuning.BackoffMax {
			backoff = 20 * time.Millisecond
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(backoff):
		}
		backoff = min(backoff*2, l.tuning.BackoffMax)
	}
}

// unfitError: the agent answers, but the guest cannot be made usable.
type unfitError struct{ err error }

func (e *unfitError) Error() string { return e.err.Error() }
func (e *unfitError) Unwrap() error { return e.err }

// once is the life of one connection.
func (l *agentLink) once(ctx context.Context) error {
	conn, err := l.open(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	calls := guest.NewClient(conn.RoundTripper())
	if err := l.ping(ctx, calls, l.tuning.ConnectTimeout); err != nil {
		return fmt.Errorf("first ping: %w", err)
	}
	pctx, cancel := context.WithTimeout(ctx, l.tuning.PingTimeout)
	defer cancel()
	err = l.prepare(pctx, calls)
	if err != nil {
		select {
		case <-conn.Closed():
		default:
			if pctx.Err() == nil && !errors.Is(err, guest.ErrUnavailable) {
				return &unfitError{err}
			}
		}
		return fmt.Errorf("prepare: %w", err)
	}
	l.set(conn)
	defer l.set(nil)
	l.readyOnce.Do(func() { close(l.ready) })
	l.log.Info("agent link is up")
	t := time.NewTicker(l.tuning.PingInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-conn.Closed():
			l.log.Warn("agent link was lost")
			return errors.New("the link was lost")
		case <-t.C:
			if err := l.ping(ctx, calls, l.tuning.PingTimeout); err != nil {
				if ctx.Err() == nil {
					l.log.Warn("agent does not answer, dropping the link", "error", err)
				}
				return fmt.Errorf("ping: %w", err)
			}
		}
	}
}

func (l *agentLink) open(ctx context.Context) (*guest.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, l.tuning.ConnectTimeout)
	defer cancel()
	stream, err := l.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	conn, err := guest.Connect(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

func (l *agentLink) ping(ctx context.Context, c *guest.Client, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err := c.Ping(ctx)
	return err
}

// entropy for a guest's kernel.
func entropy() []byte {
	b := make([]byte, 64)
	rand.Read(b) // never fails
	return b
}
