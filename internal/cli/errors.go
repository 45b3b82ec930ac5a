package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sandboxforge/internal/cli/ui"
	"sandboxforge/internal/fault"
)

// The exit codes of package cli's documentation.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitExec        = 125
	exitInterrupted = 130
	exitBrokenPipe  = 141
)

// exitCode ends the program without a further word.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// usageError is a mistake in the command line or the environment.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usage marks err as a usage error; nil stays nil.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

func usagef(format string, args ...any) error { return usage(fmt.Errorf(format, args...)) }

// interruptedError is what a command returned because it was interrupted.
type interruptedError struct{ err error }

func (e *interruptedError) Error() string { return e.err.Error() }
func (e *interruptedError) Unwrap() error { return e.err }

// codeOf is the exit code of an error that cmd returned.
func codeOf(err error, cmd *cobra.Command) int {
	var u *usageError
	var i *interruptedError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &i):
		return exitInterrupted
	case errors.As(err, &u):
		return exitUsage
	case cmd != nil && cmd.Name() == "exec":
		return exitExec
	}
	return exitFailed
}

// errorJSON is the shape of a tool error.
type errorJSON struct {
	ErrorCode fault.Code     `json:"error_code"`
	Message   string         `json:"message"`
	Details   map[string]any `json:"details"`
}

// asFault gives every error a kind, a cause and a remedy.
func asFault(err error) *fault.Error {
	var u *usageError
	var f *fault.Error
	if errors.As(err, &u) && !errors.As(err, &f) {
		return fault.New(fault.InvalidArgument, "%s", err.Error()).Next("run the command with --help")
	}
	return fault.From(err)
}

// messageOf is what err says, including what was put around its fault.
func messageOf(err error) string {
	var f *fault.Error
	if errors.As(err, &f) {
		return err.Error()
	}
	return asFault(err).Error()
}

// printError says what happened, why, and what to do.
func printError(w io.Writer, err error, asJSON bool) {
	f := asFault(err)
	details := f.DetailMap()
	if asJSON {
		b, jerr := json.MarshalIndent(errorJSON{f.Code, messageOf(err), details}, "", "  ")
		if jerr == nil {
			fmt.Fprintf(w, "%s\n", b)
			return
		}
	}
	fmt.Fprintf(w, "sandboxforge: %s\n", ui.CleanLines(messageOf(err)))
	if cause, _ := details["probable_cause"].(string); cause != "" && cause != f.Message && (f.Err == nil || cause != f.Err.Error()) {
		fmt.Fprintf(w, "  cause: %s\n", ui.CleanLines(cause))
	}
	steps, _ := details["next_steps"].([]string)
	for _, step := range steps {
		fmt.Fprintf(w, "  next:  %s\n", ui.CleanLines(step))
	}
	fmt.Fprintf(w, "  code:  %s\n", f.Code)
}
