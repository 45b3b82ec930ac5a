package image

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"sandboxforge/internal/fault"
)

// childError is a program that failed, with the end of what it said.
type childError struct {
	program, tail string
	err           error
}

func (e *childError) Error() string {
	if e.tail == "" {
		return fmt.Sprintf("%s: %v", e.program, e.err)
	}
	return fmt.Sprintf("%s: %v: %s", e.program, e.err, e.tail)
}

func (e *childError) Unwrap() error { return e.err }

// diskFull turns an error of a build step into the fault that says what to do,
// if it came from a full disk. Children only say so in words.
func diskFull(err error, dir string) error {
	if err == nil {
		return nil
	}
	var c *childError
	full := errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
	if errors.As(err, &c) {
		for _, words := range []string{"No space left on device", "not enough free space", "Disk quota exceeded", "Could not allocate block"} {
			full = full || strings.Contains(c.tail, words)
		}
	}
	if !full {
		return err
	}
	return fault.Wrap(err, fault.InsufficientDisk, "the disk was full while a guest image was built").
		Because("there is not enough room below %s", dir).
		Next("free disk space there, or set SANDBOXFORGE_HOME to a larger disk, and build again").
		With("directory", dir)
}
