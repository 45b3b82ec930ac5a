package qemu

import (
	"fmt"
	"strings"
	"syscall"
)

// What programs print of a system call that failed, under LC_ALL=C, and GLib's
// own words for the last.
var shortages = []struct {
	text  string
	errno syscall.Errno
}{
	{"No space left on device", syscall.ENOSPC},
	{"Disk quota exceeded", syscall.EDQUOT},
	{"Cannot allocate memory", syscall.ENOMEM},
	{"failed to allocate", syscall.ENOMEM},
}

// shortageIn is the error of the system call that a program's output tells of,
// if it is that the host's disk or memory is full; nil otherwise.
func shortageIn(text string) error {
	for _, s := range shortages {
		if strings.Contains(text, s.text) {
			return s.errno
		}
	}
	return nil
}

// withShortage adds to err what the text says of the host's disk or memory, so
// that errors.Is finds it.
func withShortage(err error, text string) error {
	if s := shortageIn(text); s != nil {
		return fmt.Errorf("%w: %w", err, s)
	}
	return err
}
