package link

import (
	"os"
	"sync"
	"time"
)

// Buffer is a bounded queue of bytes between one writer and one reader, with
// read deadlines. A net.Conn over message streams is built from it.
type Buffer struct {
	mu       sync.Mutex
	cond     sync.Cond
	buf      []byte // ring
	r, n     int
	err      error // what Read returns when the queue is empty
	dropped  bool  // the reader left: writes are discarded with err
	deadline time.Time
	timer    *time.Timer
}

// NewBuffer makes a queue that holds size bytes; its memory is allocated as
// needed and released when the queue is closed.
func NewBuffer(size int) *Buffer {
	b := &Buffer{buf: make([]byte, size)}
	b.cond.L = &b.mu
	return b
}

// Write appends p, waiting for space. It fails once the queue was closed.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	total := 0
	for len(p) > 0 {
		for b.n == len(b.buf) && b.err == nil {
			b.cond.Wait()
		}
		if b.err != nil {
			return total, b.err
		}
		w := b.r + b.n
		if w >= len(b.buf) {
			w -= len(b.buf)
		}
		end := len(b.buf)
		if w < b.r {
			end = b.r
		}
		n := copy(b.buf[w:end], p)
		b.n += n
		total += n
		p = p[n:]
		b.cond.Broadcast()
	}
	return total, nil
}

// Read takes what is queued, waiting for at least one byte, the close of the
// queue or the deadline (os.ErrDeadlineExceeded).
func (b *Buffer) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.n == 0 || b.dropped {
		if b.err != nil {
			return 0, b.err
		}
		if !b.deadline.IsZero() && !time.Now().Before(b.deadline) {
			return 0, os.ErrDeadlineExceeded
		}
		b.cond.Wait()
	}
	total := 0
	for total < len(p) && b.n > 0 {
		end := min(b.r+b.n, len(b.buf))
		n := copy(p[total:], b.buf[b.r:end])
		total += n
		b.n -= n
		b.r += n
		if b.r == len(b.buf) {
			b.r = 0
		}
	}
	b.cond.Broadcast()
	return total, nil
}

// CloseWrite ends the queue: the reader gets what is queued, then err.
func (b *Buffer) CloseWrite(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
		b.cond.Broadcast()
	}
}

// Close drops what is queued; the reader and the writer get err from now on.
func (b *Buffer) Close(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil || !b.dropped {
		b.err = err
	}
	b.dropped = true
	if b.timer != nil {
		b.timer.Stop()
	}
	b.cond.Broadcast()
}

// SetReadDeadline is net.Conn's.
func (b *Buffer) SetReadDeadline(t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deadline = t
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
	if !t.IsZero() && b.err == nil {
		b.timer = time.AfterFunc(time.Until(t), func() {
			b.mu.Lock()
			b.cond.Broadcast()
			b.mu.Unlock()
		})
	}
	b.cond.Broadcast()
}
