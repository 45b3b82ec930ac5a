package link

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// closeGrace is how long the host's Close waits for its CLOSE frame to leave.
const closeGrace = 500 * time.Millisecond

// Dial opens a session on the host's end of a stream. It repeats its HELLO
// until the guest echoes it, so it may be called before the guest is up; ctx
// bounds the wait. Dial owns rwc from the call on: it is closed when the
// connection is, and when Dial fails.
//
// Closing the connection tells the guest, then closes rwc. A connection over
// which anything else than its session arrives fails with ErrBroken or ErrReset.
func Dial(ctx context.Context, rwc io.ReadWriteCloser) (net.Conn, error) {
	var id [8]byte
	rand.Read(id[:])
	h := &hostConn{
		welcome: make(chan struct{}),
		done:    make(chan struct{}),
	}
	s := &stream{rwc: rwc}
	h.conn = newConn(s, binary.LittleEndian.Uint64(id[:])|1, nil)
	go h.pump()

	// A write into a stream that nobody reads can block; closing it is the
	// only way out.
	stop := context.AfterFunc(ctx, func() { rwc.Close() })
	err := h.greet(ctx)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		h.end(err, true)
		rwc.Close()
		<-h.done
		return nil, err
	}
	return h, nil
}

// hostConn is the host's session: the only one its stream ever has.
type hostConn struct {
	*conn
	welcome chan struct{} // closed by the pump
	done    chan struct{} // the pump has ended
}

func (h *hostConn) greet(ctx context.Context) error {
	hello := frame{typ: typeHello, session: h.id, payload: []byte{version, 0}}
	wait := 100 * time.Millisecond
	for {
		if err := h.s.write(hello); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("%w: %w", ErrBroken, err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-h.welcome:
			timer.Stop()
			return nil
		case <-h.closed:
			timer.Stop()
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return h.over()
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
			wait = min(2*wait, time.Second)
		}
	}
}

// pump reads the stream until it ends or the session does.
func (h *hostConn) pump() {
	defer close(h.done)
	d := newDecoder(h.s.rwc)
	welcome := false
	for {
		f, err := d.next()
		switch {
		case errors.Is(err, errGarbage):
			if welcome {
				h.fail(fmt.Errorf("%w: %w", ErrBroken, err))
				return
			}
		case err != nil:
			h.fail(fmt.Errorf("%w: %w", ErrBroken, eof(err)))
			return
		case f.typ == typeReset && welcome:
			h.fail(ErrReset)
			return
		case f.session != h.id:
			// Left over from an earlier session, or the late news that it is
			// over.
		case f.typ == typeWelcome:
			if len(f.payload) < 1 || f.payload[0] != version {
				h.fail(fmt.Errorf("%w: the guest's agent speaks another link version (%x, not %d)", ErrBroken, f.payload, version))
				return
			}
			if !welcome {
				welcome = true
				close(h.welcome)
			}
		case welcome:
			h.deliver(f)
		}
		select {
		case <-h.closed:
			return
		default:
		}
	}
}

// Close implements net.Conn.
func (h *hostConn) Close() error {
	if h.end(net.ErrClosed, true) {
		force := time.AfterFunc(closeGrace, func() { h.s.rwc.Close() })
		h.s.write(frame{typ: typeClose, session: h.id}) //nolint:errcheck // best effort
		force.Stop()
	}
	h.s.rwc.Close()
	<-h.done
	return nil
}

// eof makes an end of stream inside a session an error: the session's own end
// is a CLOSE frame.
func eof(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
