package supervisor

import (
	"sync"
	"time"
)

// clock is the time that deadlines are counted on; tests hold it.
type clock interface {
	// Now is the wall clock, which may be set at any time.
	Now() time.Time
	// Boot is a clock that nobody sets and that goes on while the host sleeps.
	Boot() time.Duration
	// NewAlarm returns an alarm on Boot.
	NewAlarm() (alarm, error)
}

// alarm fires once for each Set, when Boot reaches that moment.
type alarm interface {
	Set(at time.Duration)
	C() <-chan struct{}
	// Close ends the alarm's goroutine and waits for it.
	Close()
}

type systemClock struct{}

// Wall is the host's clock. It is a variable for tests, which set it.
var Wall = time.Now

func (systemClock) Now() time.Time      { return Wall() }
func (systemClock) Boot() time.Duration { return bootTime() }

// deadline is a moment given in wall time and kept on the boot clock, so that
// setting the host's time neither shortens nor prolongs a lease.
type deadline struct {
	clock clock
	alarm alarm

	mu   sync.Mutex
	wall time.Time
	at   time.Duration
}

// farFuture keeps sums of durations from overflowing.
const farFuture = 100 * 365 * 24 * time.Hour

func newDeadline(c clock, wall time.Time) (*deadline, error) {
	a, err := c.NewAlarm()
	if err != nil {
		return nil, err
	}
	d := &deadline{clock: c, alarm: a}
	d.set(wall)
	return d, nil
}

func (d *deadline) set(wall time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	// Round strips the monotonic reading, which stands still during suspend.
	d.wall = wall.Round(0)
	d.at = d.clock.Boot() + min(d.wall.Sub(d.clock.Now().Round(0)), farFuture)
	d.alarm.Set(d.at)
}

// get returns the deadline as it was given and what remains of it.
func (d *deadline) get() (wall time.Time, remaining time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.wall, d.at - d.clock.Boot()
}

// passed is also the guard against an alarm that was overtaken by a later set.
func (d *deadline) passed() bool {
	_, r := d.get()
	return r <= 0
}
