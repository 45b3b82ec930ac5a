//go:build !linux

package supervisor

import (
	"sync"
	"time"
)

// pollPeriod bounds how late the alarm is after a sleep of the host, during
// which Go's timers stand still.
const pollPeriod = 5 * time.Second

// pollAlarm looks at the boot clock at least every pollPeriod.
type pollAlarm struct {
	c    chan struct{}
	set  chan time.Duration
	quit chan struct{}
	wg   sync.WaitGroup
}

func (systemClock) NewAlarm() (alarm, error) {
	a := &pollAlarm{c: make(chan struct{}, 1), set: make(chan time.Duration), quit: make(chan struct{})}
	a.wg.Go(a.run)
	return a, nil
}

func (a *pollAlarm) run() {
	t := time.NewTimer(pollPeriod)
	defer t.Stop()
	armed, at := false, time.Duration(0)
	for {
		select {
		case <-a.quit:
			return
		case at = <-a.set:
			armed = true
		case <-t.C:
		}
		left := at - bootTime()
		if armed && left <= 0 {
			armed = false
			select {
			case a.c <- struct{}{}:
			default:
			}
		}
		if !armed {
			left = pollPeriod
		}
		t.Reset(min(left, pollPeriod))
	}
}

func (a *pollAlarm) Set(at time.Duration) {
	select {
	case a.set <- at:
	case <-a.quit:
	}
}

func (a *pollAlarm) C() <-chan struct{} { return a.c }

func (a *pollAlarm) Close() {
	close(a.quit)
	a.wg.Wait()
}
