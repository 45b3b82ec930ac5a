package network

import (
	"sync/atomic"
	"time"
)

// idleTimer calls cut when a flow has been quiet for its limit. Touching it is
// cheap: the timer itself is set again only when it fires.
type idleTimer struct {
	cut   func()
	start time.Time
	last  atomic.Int64 // nanoseconds since start
	limit atomic.Int64 // nanoseconds
	timer *time.Timer
}

func newIdleTimer(limit time.Duration, cut func()) *idleTimer {
	t := &idleTimer{cut: cut, start: time.Now()}
	t.limit.Store(int64(limit))
	t.timer = time.AfterFunc(limit, func() { t.check() })
	return t
}

func (t *idleTimer) touch() { t.last.Store(int64(time.Since(t.start))) }

// setLimit counts from now.
func (t *idleTimer) setLimit(limit time.Duration) {
	t.touch()
	t.limit.Store(int64(limit))
	t.timer.Reset(limit)
}

func (t *idleTimer) check() {
	limit := time.Duration(t.limit.Load())
	idle := time.Since(t.start) - time.Duration(t.last.Load())
	if idle >= limit {
		t.cut()
		return
	}
	t.timer.Reset(limit - idle)
}

func (t *idleTimer) stop() { t.timer.Stop() }
