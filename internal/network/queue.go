package network

import (
	"io"
	"sync"
	"time"
)

const (
	// queueLimit bounds the bytes of frames that wait for the hypervisor.
	queueLimit = 2 << 20
	// queueKeep is the capacity a drained queue may keep.
	queueKeep = 64 << 10
	// writeChunk is how much is handed to the socket before that counts as
	// progress.
	writeChunk = 128 << 10
	// writePatience is how long a write may make no progress before senders
	// stop waiting for it. A paused VM costs the stack this once.
	writePatience = 200 * time.Millisecond
)

// queue holds the frames that the stack has sent and the hypervisor has not
// read yet, each with its length in front. A sender waits for room only while
// the hypervisor reads; one that does not read makes frames drop, which TCP
// repairs, and never holds up the stack.
type queue struct {
	mu      sync.Mutex
	filled  sync.Cond // the drainer waits: something pending, or closed
	room    sync.Cond // senders wait: something written, stalled, or closed
	pending []byte
	writing int    // bytes handed to drain and not yet written
	chunks  uint64 // how many chunks were written, to know a stall from a late timer
	open    bool
	stalled bool
}

func newQueue() *queue {
	q := &queue{}
	q.filled.L, q.room.L = &q.mu, &q.mu
	return q
}

// put appends one frame of exactly n bytes, which fill appends to its argument.
// It reports whether the frame was taken; one that is dropped is never filled.
func (q *queue) put(n int, fill func([]byte) []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.open && !q.stalled && len(q.pending)+q.writing+n > queueLimit {
		q.room.Wait()
	}
	if !q.open || len(q.pending)+q.writing+n > queueLimit {
		return false
	}
	q.pending = append(q.pending, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	q.pending = fill(q.pending)
	q.filled.Signal()
	return true
}

// start lets frames in. Only one start may be without its stop.
func (q *queue) start() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open, q.stalled = true, false
}

// stop drops what waits and ends drain and every waiting put.
func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open, q.pending = false, nil
	q.filled.Broadcast()
	q.room.Broadcast()
}

// drain writes frames to w until stop, or until w fails.
func (q *queue) drain(w io.Writer) error {
	var batch []byte
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for q.open && len(q.pending) == 0 {
			q.filled.Wait()
		}
		if !q.open {
			return nil
		}
		batch, q.pending = q.pending, batch[:0]
		q.writing = len(batch)
		for rest := batch; len(rest) > 0; {
			chunk := rest[:min(len(rest), writeChunk)]
			rest = rest[len(chunk):]
			if err := q.write(w, chunk); err != nil {
				q.writing = 0
				return err
			}
		}
		if cap(batch) > queueKeep {
			batch = nil
		}
	}
}

// write hands one chunk to w, with q unlocked meanwhile.
func (q *queue) write(w io.Writer, chunk []byte) error {
	mine := q.chunks
	q.mu.Unlock()
	watch := time.AfterFunc(writePatience, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.chunks == mine {
			q.stalled = true
			q.room.Broadcast()
		}
	})
	_, err := w.Write(chunk)
	watch.Stop()
	q.mu.Lock()
	q.chunks++
	q.writing -= len(chunk)
	q.stalled = false
	q.room.Broadcast()
	return err
}
