package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Errors of a session, for errors.Is.
var (
	// ErrBroken: the stream failed, or what came over it was not the session
	// (checksum, sequence). The connection is over; a new Dial may succeed.
	ErrBroken = errors.New("link: session broken")
	// ErrReset: the other end has no such session (it was started anew, or
	// a newer session replaced this one).
	ErrReset = errors.New("link: session reset by the other end")
)

// receiveBuffer bounds what a session holds for a reader that is late.
const receiveBuffer = 256 << 10

// stream is the raw stream that sessions take turns on. Its writer side is
// shared; its reader side belongs to the pump of Dial or Listener.
type stream struct {
	rwc  io.ReadWriteCloser
	wmu  sync.Mutex
	wbuf []byte
}

func (s *stream) write(f frame) error {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	return s.writeLocked(f)
}

func (s *stream) writeLocked(f frame) error {
	s.wbuf = appendFrame(s.wbuf[:0], f)
	_, err := s.rwc.Write(s.wbuf)
	return err
}

// conn is one session. It implements net.Conn and, for HTTP/2, behaves like a
// TCP connection: Close is abrupt for the reader, and tells the other end.
type conn struct {
	s      *stream
	id     uint64
	in     *Buffer
	rseq   uint32 // pump only
	wseq   uint32 // under s.wmu
	notify func(*conn)

	mu     sync.Mutex
	err    error // set once the session is over
	closed chan struct{}
}

func newConn(s *stream, id uint64, notify func(*conn)) *conn {
	return &conn{s: s, id: id, in: NewBuffer(receiveBuffer), closed: make(chan struct{}), notify: notify}
}

// deliver takes a frame of the session from the pump.
func (c *conn) deliver(f frame) {
	switch f.typ {
	case typeData:
		if f.seq != c.rseq {
			c.fail(fmt.Errorf("%w: data frame %d where %d was due", ErrBroken, f.seq, c.rseq))
			return
		}
		c.rseq++
		c.in.Write(f.payload) //nolint:errcheck // fails only if the reader closed
	case typeClose:
		if len(f.payload) > 0 {
			c.fail(fmt.Errorf("%w: %q", ErrReset, f.payload))
			return
		}
		c.end(io.EOF, false)
	}
}

// started says whether data was received.
func (c *conn) started() bool { return c.rseq != 0 }

func (c *conn) fail(err error) { c.end(err, true) }

// end ends the session once. With drop, bytes that were not read are lost.
func (c *conn) end(err error, drop bool) bool {
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.err = err
		close(c.closed)
	}
	c.mu.Unlock()
	if drop {
		c.in.Close(err)
	} else {
		c.in.CloseWrite(err)
	}
	if first && c.notify != nil {
		c.notify(c)
	}
	return first
}

func (c *conn) Read(p []byte) (int, error) { return c.in.Read(p) }

func (c *conn) Write(p []byte) (int, error) {
	total := 0
	for len(p) > 0 {
		n := splitPayload(p)
		if err := c.writeOne(p[:n]); err != nil {
			return total, err
		}
		total += n
		p = p[n:]
	}
	return total, nil
}

func (c *conn) writeOne(p []byte) error {
	c.s.wmu.Lock()
	defer c.s.wmu.Unlock()
	select {
	case <-c.closed:
		return c.over()
	default:
	}
	err := c.s.writeLocked(frame{typ: typeData, session: c.id, seq: c.wseq, payload: p})
	c.wseq++
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrBroken, err)
		c.fail(err)
		return err
	}
	return nil
}

func (c *conn) over() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == io.EOF { //nolint:errorlint // set by us
		return fmt.Errorf("%w: closed by the other end", ErrReset)
	}
	return c.err
}

// Close ends the session for both ends. Bytes that were written before are on
// their way; there is no waiting for their arrival.
func (c *conn) Close() error {
	c.end(net.ErrClosed, true)
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return addr(c.id) }
func (c *conn) RemoteAddr() net.Addr { return addr(c.id) }

func (c *conn) SetDeadline(t time.Time) error {
	c.in.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.SetReadDeadline(t)
	return nil
}

// SetWriteDeadline is not supported where the raw stream has none: a frame that
// is half written cannot be taken back, so a deadline would end the session.
func (c *conn) SetWriteDeadline(t time.Time) error {
	if t.IsZero() {
		return nil
	}
	return os.ErrNoDeadline
}

// addr is a session's address: its id.
type addr uint64

func (addr) Network() string  { return "link" }
func (a addr) String() string { return fmt.Sprintf("session-%016x", uint64(a)) }
