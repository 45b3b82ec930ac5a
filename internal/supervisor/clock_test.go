//go:build unix

package supervisor

import (
	"sync"
	"testing"
	"time"
)

// fakeClock is a clock that stands until it is moved.
type fakeClock struct {
	mu     sync.Mutex
	wall   time.Time
	boot   time.Duration
	alarms []*fakeAlarm
}

type fakeAlarm struct {
	clock *fakeClock
	at    time.Duration // 0: not set
	c     chan struct{}
}

func (c *fakeClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall
}

func (c *fakeClock) Boot() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boot
}

func (c *fakeClock) NewAlarm() (alarm, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &fakeAlarm{clock: c, c: make(chan struct{}, 1)}
	c.alarms = append(c.alarms, a)
	return a, nil
}

func (c *fakeClock) advance(wall, boot time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = c.wall.Add(wall)
	c.boot += boot
	for _, a := range c.alarms {
		a.check()
	}
}

func (a *fakeAlarm) check() {
	if a.at != 0 && a.clock.boot >= a.at {
		a.at = 0
		a.c <- struct{}{}
	}
}

func (a *fakeAlarm) Set(at time.Duration) {
	a.clock.mu.Lock()
	defer a.clock.mu.Unlock()
	a.at = at
	a.check()
}
func (a *fakeAlarm) C() <-chan struct{} { return a.c }
func (a *fakeAlarm) Close()             {}

func fired(a alarm) bool {
	select {
	case <-a.C():
		return true
	default:
		return false
	}
}

func TestDeadlineIgnoresTheWall(t *testing.T) {
	c := &fakeClock{wall: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), boot: time.Minute}
	d, err := newDeadline(c, c.wall.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	c.advance(48*time.Hour, 30*time.Minute) // somebody sets the clock
	if d.passed() || fired(d.alarm) {
		t.Error("a jump of the wall clock ended the lease")
	}
	c.advance(-100*time.Hour, 29*time.Minute)
	if d.passed() || fired(d.alarm) {
		t.Error("early")
	}
	c.advance(0, time.Minute)
	if !d.passed() || !fired(d.alarm) {
		t.Error("a jump back of the wall clock prolonged the lease")
	}
}

func TestDeadlineMoves(t *testing.T) {
	c := &fakeClock{wall: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), boot: time.Minute}
	d, err := newDeadline(c, c.wall.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	d.set(c.wall.Add(2 * time.Hour))
	c.advance(90*time.Minute, 90*time.Minute)
	if d.passed() || fired(d.alarm) {
		t.Error("the old deadline is in force")
	}
	d.set(c.wall.Add(time.Minute))
	if _, left := d.get(); left != time.Minute {
		t.Errorf("remains %v", left)
	}
	c.advance(time.Minute, time.Minute)
	if !d.passed() || !fired(d.alarm) {
		t.Error("the new deadline is not in force")
	}
	d.set(time.Unix(1<<60, 0)) // must not overflow into the past
	if d.passed() {
		t.Error("the far future has passed")
	}
}

func TestSystemAlarm(t *testing.T) {
	a, err := systemClock{}.NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	a.Set(bootTime() + time.Hour)
	at := bootTime() + 20*time.Millisecond
	a.Set(at)
	<-a.C()
	if bootTime() < at {
		t.Error("early")
	}
	a.Set(0)
	<-a.C()
}

// An extension that comes between the alarm and its handling wins; an alarm
// that was handled is final.
func TestExpiryAgainstExtension(t *testing.T) {
	c := &fakeClock{wall: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), boot: time.Minute}
	o := testOptions(t, &fakeBackend{})
	o.Deadline = c.wall.Add(time.Hour)
	s, err := newSupervisor(o, &fakeBackend{}, c, newLogger(t.Output(), "ERROR"))
	if err != nil {
		t.Fatal(err)
	}
	c.advance(59*time.Minute, 59*time.Minute)
	s.expire()
	if s.stop != nil {
		t.Fatal("expired early")
	}
	if err := s.setDeadline(c.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	c.advance(time.Minute, time.Minute)
	s.expire() // as the old alarm would
	if s.stop != nil {
		t.Fatal("an overtaken alarm expired the lease")
	}
	c.advance(time.Hour, time.Hour)
	if err := s.setDeadline(c.Now().Add(time.Hour)); err == nil {
		t.Fatal("a lease that has passed was revived")
	}
	s.expire()
	if s.stop == nil || s.stop.reason != ReasonExpired {
		t.Fatalf("not expired: %+v", s.stop)
	}
	s.requestStop(stopRequest{reason: ReasonDestroyed})
	if s.stop.reason != ReasonExpired {
		t.Error("a later reason replaced the first")
	}
	s.wg.Wait()
}
