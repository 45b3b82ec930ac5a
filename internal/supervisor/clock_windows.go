package supervisor

import (
	"time"

	"golang.org/x/sys/windows"
)

// bootTime counts sleep and hibernation too.
func bootTime() time.Duration { return windows.DurationSinceBoot() }
