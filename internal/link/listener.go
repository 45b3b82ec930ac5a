package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// ErrHostGone is what a stream's Read returns when the host's end was closed
// but may be opened again on the same stream, as a virtio port's can. The
// Listener then ends the session and reads on.
var ErrHostGone = errors.New("link: the host closed its end")

// Listener is the guest's end of a stream: a net.Listener whose Accept returns
// one connection for each HELLO. A new session ends the one before it.
type Listener struct {
	s      *stream
	accept chan net.Conn
	done   chan struct{} // the pump has ended

	mu     sync.Mutex
	cur    *conn
	seen   bool // a HELLO came
	over   bool // Close waits for sends: no more of them
	closed chan struct{}
	err    error
	once   sync.Once
	sends  sync.WaitGroup
}

// NewListener serves sessions on rwc, which it owns. It tells a host that still
// holds a session from before that there is none any more.
func NewListener(rwc io.ReadWriteCloser) *Listener {
	l := &Listener{
		s:      &stream{rwc: rwc},
		accept: make(chan net.Conn),
		done:   make(chan struct{}),
		closed: make(chan struct{}),
	}
	l.send(frame{typ: typeReset}, func() bool { return !l.greeted() })
	go l.pump()
	return l
}

// send writes a frame without waiting: the host may not be reading. If only is
// given, it decides at the moment of writing whether the frame still makes
// sense.
func (l *Listener) send(f frame, only func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	l.sends.Go(func() {
		l.s.wmu.Lock()
		defer l.s.wmu.Unlock()
		if only == nil || only() {
			l.s.writeLocked(f) //nolint:errcheck // the pump sees a broken stream
		}
	})
}

func (l *Listener) greeted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen
}

func (l *Listener) pump() {
	defer close(l.done)
	d := newDecoder(l.s.rwc)
	for {
		f, err := d.next()
		cur := l.current()
		switch {
		case errors.Is(err, errGarbage):
			if cur != nil {
				cur.fail(fmt.Errorf("%w: %w", ErrBroken, err))
			}
			continue
		case errors.Is(err, ErrHostGone):
			if cur != nil {
				cur.fail(fmt.Errorf("%w: %w", ErrBroken, err))
			}
			continue
		case err != nil:
			if cur != nil {
				cur.fail(fmt.Errorf("%w: %w", ErrBroken, eof(err)))
			}
			l.stop(err)
			return
		}
		switch {
		case f.typ == typeHello:
			l.hello(cur, f)
		case cur != nil && f.session == cur.id:
			cur.deliver(f)
		case f.typ == typeData:
			// A host that still believes in a session that is over here.
			l.send(frame{typ: typeClose, session: f.session, payload: []byte("no such session")}, nil)
		}
	}
}

// hello opens a session, or echoes again the one that was just opened: the
// host repeats its HELLO until it sees the echo.
func (l *Listener) hello(cur *conn, f frame) {
	welcome := frame{typ: typeWelcome, session: f.session, payload: []byte{version, 0}}
	if cur != nil && cur.id == f.session {
		if !cur.started() {
			l.s.write(welcome) //nolint:errcheck // the pump sees a broken stream
		}
		return
	}
	if cur != nil {
		cur.fail(fmt.Errorf("%w: the host opened a new session", ErrReset))
	}
	c := newConn(l.s, f.session, l.ended)
	l.mu.Lock()
	l.cur, l.seen = c, true
	l.mu.Unlock()
	// Writing here cannot deadlock: a host that said HELLO reads, so an older
	// session's half-written frame drains.
	if err := l.s.write(welcome); err != nil {
		c.fail(fmt.Errorf("%w: %w", ErrBroken, err))
		return
	}
	select {
	case l.accept <- c:
	case <-l.closed:
		c.fail(net.ErrClosed)
	}
}

// ended forgets a session that is over and, if our side ended it, says so.
func (l *Listener) ended(c *conn) {
	l.mu.Lock()
	if l.cur == c {
		l.cur = nil
	}
	l.mu.Unlock()
	switch err := c.over(); {
	case errors.Is(err, net.ErrClosed):
		l.send(frame{typ: typeClose, session: c.id}, nil)
	case errors.Is(err, errGarbage), errors.Is(err, ErrBroken) && !errors.Is(err, ErrHostGone):
		l.send(frame{typ: typeClose, session: c.id, payload: []byte("stream damaged")}, nil)
	}
}

func (l *Listener) current() *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cur
}

// Accept waits for the next session. It fails with net.ErrClosed after Close
// and with the stream's error after the stream ended.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, l.err
	}
}

func (l *Listener) stop(err error) {
	l.once.Do(func() {
		if errors.Is(err, io.EOF) {
			err = io.EOF
		}
		l.err = err
		close(l.closed)
	})
}

// Close ends the session there is, closes the stream and waits for the
// listener's goroutines.
func (l *Listener) Close() error {
	l.stop(net.ErrClosed)
	err := l.s.rwc.Close()
	<-l.done
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.sends.Wait()
	return err
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return addr(0) }
