//go:build unix

package mcpserver

import (
	"fmt"
	"os"

	"github.com/mattn/go-isatty"
	"golang.org/x/sys/unix"
)

// TakeStdio takes standard input and output for the protocol: both move to
// descriptors that no child inherits. What else writes to standard output from
// now on writes to standard error, and standard input is empty.
func TakeStdio() (Stdio, error) {
	kind := stdinKind()
	in, err := take(0, "stdin")
	if err != nil {
		return Stdio{}, err
	}
	out, err := take(1, "stdout")
	if err != nil {
		return Stdio{}, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return Stdio{}, fmt.Errorf("taking stdin for the protocol: %w", err)
	}
	defer null.Close()
	if err := replace(int(null.Fd()), 0); err != nil {
		return Stdio{}, fmt.Errorf("taking stdin for the protocol: %w", err)
	}
	if err := replace(2, 1); err != nil {
		return Stdio{}, fmt.Errorf("taking stdout for the protocol: %w", err)
	}
	return Stdio{In: in, Out: out, Kind: kind}, nil
}

func take(fd int, name string) (*os.File, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("taking %s for the protocol: %w", name, err)
	}
	return os.NewFile(uintptr(dup), name), nil
}

// stdinKind looks at descriptor 0. Go opens the null device in the place of
// one that was closed.
func stdinKind() StdinKind {
	if isatty.IsTerminal(0) || isatty.IsCygwinTerminal(0) {
		return StdinTerminal
	}
	st, err := os.Stdin.Stat()
	if err != nil {
		return StdinNull
	}
	null, err := os.Stat(os.DevNull)
	if err == nil && os.SameFile(st, null) {
		return StdinNull
	}
	return StdinPipe
}
