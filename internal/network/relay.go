package network

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// idleOpen ends a connection on which nothing moved for that long; RFC 5382
	// asks for two hours and four minutes at least. Peers that are gone are
	// found earlier, by keep-alives.
	idleOpen = 2*time.Hour + 4*time.Minute
	// idleHalf ends one that one side has closed.
	idleHalf = 15 * time.Minute

	// Each direction of a connection holds a buffer of smallBuffer; one that has
	// more to read borrows one of bigBuffer and gives it back when it has been
	// quiet for bufferRest. One whose receiver does not read keeps it, so there
	// are maxBigBuffers, and who finds none does with the small one.
	smallBuffer   = 4 << 10
	bigBuffer     = 64 << 10
	bufferRest    = 2 * time.Second
	maxBigBuffers = 256

	// segmentHeaders is what the stack leaves in a packet for IP, TCP and all
	// options that TCP can have.
	segmentHeaders = 20 + 20 + 40
)

var bigBuffers = sync.Pool{New: func() any { return new([bigBuffer]byte) }}

// lender has so many big buffers to lend as there are places.
type lender chan struct{}

// take gives nil if all are out.
func (l lender) take() *[bigBuffer]byte {
	select {
	case l <- struct{}{}:
		return bigBuffers.Get().(*[bigBuffer]byte)
	default:
		return nil
	}
}

func (l lender) give(b *[bigBuffer]byte) {
	bigBuffers.Put(b)
	<-l
}

// relay copies both ways until both sides have ended. An end of one side is
// handed on as an end of that direction only. It reports whether all was
// delivered; if not, one of the sides failed, and it has called cut, which must
// end both.
func relay(guest, upstream net.Conn, mtu int, l lender, cut func()) bool {
	idle := newIdleTimer(idleOpen, cut)
	defer idle.stop()
	var other sync.WaitGroup
	var otherErr error
	// Whole segments: what is beyond the last would go in a frame of its own.
	segment := mtu - segmentHeaders
	other.Go(func() { otherErr = copyHalf(guest, upstream, bigBuffer/segment*segment, l, idle) })
	err := copyHalf(upstream, guest, bigBuffer, l, idle)
	other.Wait()
	return err == nil && otherErr == nil
}

// copyHalf moves one direction to its end, at most so many bytes at a time.
func copyHalf(dst, src net.Conn, most int, l lender, idle *idleTimer) error {
	err := move(dst, src, most, l, idle)
	if err == nil {
		if half, ok := dst.(interface{ CloseWrite() error }); ok {
			err = half.CloseWrite()
		} else {
			err = errors.ErrUnsupported
		}
	}
	if err != nil {
		idle.cut()
		return err
	}
	idle.setLimit(idleHalf)
	return nil
}

func move(dst io.Writer, src net.Conn, most int, l lender, idle *idleTimer) error {
	small := make([]byte, smallBuffer)
	buf := small
	var big *[bigBuffer]byte
	defer func() {
		if big != nil {
			l.give(big)
		}
	}()
	moved := false // since the deadline was set
	for {
		n, err := src.Read(buf)
		if n > 0 {
			idle.touch()
			moved = true
			if _, err := dst.Write(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case big != nil && deadlinePassed(err):
			// Quiet: wait without the big buffer.
			rest := time.Time{}
			if moved {
				rest = time.Now().Add(bufferRest)
			} else {
				l.give(big)
				big, buf = nil, small
			}
			moved = false
			if err := src.SetReadDeadline(rest); err != nil {
				return err
			}
		case err != nil:
			return err
		case n == smallBuffer && big == nil:
			if big = l.take(); big == nil {
				continue
			}
			buf = big[:most]
			moved = false
			if err := src.SetReadDeadline(time.Now().Add(bufferRest)); err != nil {
				return err
			}
		}
	}
}

// deadlinePassed tells our own deadline from a connection that timed out, which
// also calls itself a timeout and is the end.
func deadlinePassed(err error) bool {
	var timeout net.Error
	var system syscall.Errno
	return errors.As(err, &timeout) && timeout.Timeout() && !errors.As(err, &system)
}
