// Package fault holds the one error type that crosses package borders in
// SandboxForge.
//
// An error is made where the knowledge is: the package that saw it go wrong
// states the kind (a Code of the tool contract), what happened, what probably
// caused it and what the reader can do next. Only mcpserver and the CLI turn a
// fault into output; nobody in between parses messages.
//
//	return fault.New(fault.InstanceNotFound, "no instance %q", id).
//		Next("call list_instances to see the instances there are")
//
// The package knows nothing of leases, backends, MCP or SQL.
package fault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
)

// Error is a failure with a kind, a cause and a remedy. The zero value is not
// useful; make one with New or Wrap.
type Error struct {
	Code    Code
	Message string
	// Cause says in one sentence what probably led to the failure.
	Cause string
	// NextSteps are imperative sentences, the likeliest remedy first.
	NextSteps []string
	// Details are further fields of the tool error's details object. The keys
	// probable_cause and next_steps are set from Cause and NextSteps.
	Details map[string]any
	// Err is the wrapped error, for errors.Is and errors.As; may be nil.
	Err error
}

// New makes a fault from a format.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Wrap makes a fault around err. The message stands alone: it should make
// sense without err's text, which is appended by Error. Where the code says no
// more than that something failed, and err is a shortage of the host, the code
// is that of the shortage.
func Wrap(err error, code Code, format string, args ...any) *Error {
	if code == Internal || code == BackendCommandFailed {
		code = cmp.Or(shortage(err), code)
	}
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Err: err}
}

// Because states the probable cause and returns e.
func (e *Error) Because(format string, args ...any) *Error {
	e.Cause = fmt.Sprintf(format, args...)
	return e
}

// Next appends a remedy and returns e.
func (e *Error) Next(format string, args ...any) *Error {
	e.NextSteps = append(e.NextSteps, fmt.Sprintf(format, args...))
	return e
}

// With sets one detail and returns e.
func (e *Error) With(key string, value any) *Error {
	if e.Details == nil {
		e.Details = map[string]any{}
	}
	e.Details[key] = value
	return e
}

// Error implements error: the message, then the wrapped error's text.
func (e *Error) Error() string {
	if e.Err != nil {
		return e.Message + ": " + e.Err.Error()
	}
	return e.Message
}

// Unwrap implements the errors protocol.
func (e *Error) Unwrap() error { return e.Err }

// DetailMap is the details object of a tool error: Details plus
// probable_cause and next_steps, which are always there.
func (e *Error) DetailMap() map[string]any {
	m := maps.Clone(e.Details)
	if m == nil {
		m = map[string]any{}
	}
	if _, ok := m["probable_cause"]; !ok {
		cause := e.Cause
		if cause == "" && e.Err != nil {
			cause = e.Err.Error()
		}
		if cause == "" {
			cause = e.Message
		}
		m["probable_cause"] = cause
	}
	if _, ok := m["next_steps"]; !ok {
		steps := e.NextSteps
		if steps == nil {
			steps = e.Code.defaultSteps()
		}
		m["next_steps"] = steps
	}
	return m
}

// From finds the fault in err. A context that ended becomes Cancelled, a full
// disk or memory what there is too little of, any other error Internal.
// From(nil) is nil.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	if errors.Is(err, context.Canceled) {
		return Wrap(err, Cancelled, "the call was cancelled")
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return Wrap(err, Cancelled, "the call's deadline passed")
	}
	switch shortage(err) {
	case InsufficientDisk:
		return Wrap(err, InsufficientDisk, "the host's disk is full")
	case InsufficientHostResources:
		return Wrap(err, InsufficientHostResources, "the host's memory is used up")
	}
	return Wrap(err, Internal, "unexpected failure")
}

// CodeOf is the code of the fault in err, Internal for any other error, and
// "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return From(err).Code
}

// Is reports whether err carries the given code.
func Is(err error, code Code) bool { return err != nil && CodeOf(err) == code }
