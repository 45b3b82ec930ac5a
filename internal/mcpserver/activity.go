package mcpserver

import (
	"context"
	"sync"
	"time"
)

// Clock is the time, passed in so that a test can hold it.
type Clock interface {
	Now() time.Time
	// After delivers once, after d.
	After(d time.Duration) <-chan time.Time
}

type systemClock struct{}

func (systemClock) Now() time.Time                         { return time.Now() }
func (systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// activity knows whether HTTP is in use: how many requests are being answered
// (an open event stream is one) and when the last one ended.
type activity struct {
	clock Clock

	mu      sync.Mutex
	open    int
	last    time.Time
	changed chan struct{} // replaced at every change
}

func newActivity(c Clock) *activity {
	return &activity{clock: c, last: c.Now(), changed: make(chan struct{})}
}

func (a *activity) add(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open += n
	a.last = a.clock.Now()
	close(a.changed)
	a.changed = make(chan struct{})
}

// waitIdle returns when nothing was asked for d, counted from now or from the
// end of the last request, or with ctx's error.
func (a *activity) waitIdle(ctx context.Context, d time.Duration) error {
	from := a.clock.Now()
	for {
		a.mu.Lock()
		open, last, changed := a.open, a.last, a.changed
		a.mu.Unlock()
		if last.Before(from) {
			last = from
		}
		var due <-chan time.Time
		if open == 0 {
			left := d - a.clock.Now().Sub(last)
			if left <= 0 {
				return nil
			}
			due = a.clock.After(left)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-due:
		}
	}
}
