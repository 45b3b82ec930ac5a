package hyperv

import (
	"os"
	"time"
)

// busyLimit bounds the wait for others to close a file.
const busyLimit = 20 * time.Second

// retryBusy does act again while it fails because a file is in use.
func retryBusy(act func() error) error {
	pause := 10 * time.Millisecond
	for until := time.Now().Add(busyLimit); ; {
		err := act()
		if err == nil || !isBusy(err) || time.Now().After(until) {
			return err
		}
		time.Sleep(pause)
		pause = min(2*pause, time.Second)
	}
}

// removeTree removes a directory of ours with all in it. Links are not followed.
func removeTree(dir string) error {
	return retryBusy(func() error { return os.RemoveAll(dir) })
}
