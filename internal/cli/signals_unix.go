//go:build unix

package cli

import (
	"os"
	"os/signal"
	"syscall"
)

// interrupts end a command.
var interrupts = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}

// guestSignal is the number that a signal of this host has in the (Linux)
// guest; only the few that are forwarded.
func guestSignal(s os.Signal) int {
	switch s {
	case syscall.SIGHUP:
		return 1
	case syscall.SIGTERM:
		return 15
	default:
		return 2
	}
}

// notifyResize calls changed after every change of the terminal's size until
// stop is called; stop waits for the last call.
func notifyResize(_ *os.File, changed func()) (stop func()) {
	c := make(chan os.Signal, 1)
	done := make(chan struct{})
	signal.Notify(c, syscall.SIGWINCH)
	go func() {
		defer close(done)
		for range c {
			changed()
		}
	}()
	return func() {
		signal.Stop(c)
		close(c)
		<-done
	}
}

// keepBrokenPipes makes writing to a pipe that nobody reads an error instead
// of the end of this process, until restore is called.
func keepBrokenPipes() (restore func()) {
	signal.Ignore(syscall.SIGPIPE)
	return func() { signal.Reset(syscall.SIGPIPE) }
}
