package cli

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/term"
)

// interrupts end a command.
var interrupts = []os.Signal{os.Interrupt, syscall.SIGTERM}

// guestSignal is the number that a signal of this host has in the guest.
func guestSignal(s os.Signal) int {
	if s == syscall.SIGTERM {
		return 15
	}
	return 2
}

// notifyResize calls changed after every change of the terminal's size until
// stop is called. Windows has no signal for that, so the size is asked for.
func notifyResize(tty *os.File, changed func()) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(500 * time.Millisecond)
		defer t.Stop()
		cols, rows, _ := term.GetSize(int(tty.Fd()))
		for {
			select {
			case <-quit:
				return
			case <-t.C:
				if c, r, err := term.GetSize(int(tty.Fd())); err == nil && (c != cols || r != rows) {
					cols, rows = c, r
					changed()
				}
			}
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

// keepBrokenPipes does nothing: there is no such signal here.
func keepBrokenPipes() (restore func()) { return func() {} }
