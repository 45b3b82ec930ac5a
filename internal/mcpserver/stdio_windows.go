package mcpserver

import (
	"fmt"
	"os"

	"github.com/mattn/go-isatty"
	"golang.org/x/sys/windows"
)

// TakeStdio takes standard input and output for the protocol: handles that no
// child inherits. What else writes to standard output from now on writes to
// standard error, and standard input is empty.
func TakeStdio() (Stdio, error) {
	kind := StdinPipe
	switch t, err := windows.GetFileType(windows.Handle(os.Stdin.Fd())); {
	case isatty.IsTerminal(os.Stdin.Fd()), isatty.IsCygwinTerminal(os.Stdin.Fd()):
		kind = StdinTerminal
	case err != nil, t == windows.FILE_TYPE_CHAR: // no handle, or NUL
		kind = StdinNull
	}
	if kind == StdinNull && os.Stdin.Fd() == 0 {
		return Stdio{In: os.Stdin, Out: os.Stdout, Kind: kind}, nil
	}
	for _, h := range []uintptr{os.Stdin.Fd(), os.Stdout.Fd()} {
		// A console handle refuses; a child gets it only if it is told to.
		_ = windows.SetHandleInformation(windows.Handle(h), windows.HANDLE_FLAG_INHERIT, 0)
	}
	in, out := os.Stdin, os.Stdout
	null, err := os.Open(os.DevNull)
	if err != nil {
		return Stdio{}, fmt.Errorf("taking stdin for the protocol: %w", err)
	}
	os.Stdin, os.Stdout = null, os.Stderr
	if err := windows.SetStdHandle(windows.STD_INPUT_HANDLE, windows.Handle(null.Fd())); err != nil {
		return Stdio{}, fmt.Errorf("taking stdin for the protocol: %w", err)
	}
	if err := windows.SetStdHandle(windows.STD_OUTPUT_HANDLE, windows.Handle(os.Stderr.Fd())); err != nil {
		return Stdio{}, fmt.Errorf("taking stdout for the protocol: %w", err)
	}
	return Stdio{In: in, Out: out, Kind: kind}, nil
}
