package supervisor

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("supervisor: CLOCK_BOOTTIME: " + err.Error()) // there since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}

// timerfdAlarm is a timerfd on CLOCK_BOOTTIME: it fires right after a resume
// if its moment passed during the sleep.
type timerfdAlarm struct {
	f  *os.File
	c  chan struct{}
	wg sync.WaitGroup
}

func (systemClock) NewAlarm() (alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	a := &timerfdAlarm{f: os.NewFile(uintptr(fd), "timerfd"), c: make(chan struct{}, 1)}
	a.wg.Go(func() {
		var b [8]byte
		for {
			if _, err := a.f.Read(b[:]); err != nil {
				return // closed
			}
			select {
			case a.c <- struct{}{}:
			default:
			}
		}
	})
	return a, nil
}

func (a *timerfdAlarm) Set(at time.Duration) {
	// Zero would disarm; a moment that has passed fires at once.
	at = max(at, 1)
	c, err := a.f.SyscallConn()
	if err != nil {
		return
	}
	c.Control(func(fd uintptr) {
		err = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}, nil)
	})
	if err != nil {
		panic("supervisor: timerfd_settime: " + err.Error()) // only a malformed time fails
	}
}

func (a *timerfdAlarm) C() <-chan struct{} { return a.c }

func (a *timerfdAlarm) Close() {
	a.f.Close()
	a.wg.Wait()
}
