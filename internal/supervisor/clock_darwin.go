package supervisor

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime: macOS counts CLOCK_MONOTONIC during sleep too.
func bootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("supervisor: CLOCK_MONOTONIC: " + err.Error())
	}
	return time.Duration(ts.Nano())
}
