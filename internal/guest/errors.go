package guest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"connectrpc.com/connect"
)

// Kinds of failure, for errors.Is.
var (
	ErrNotFound           = errors.New("not found in the guest")
	ErrAlreadyExists      = errors.New("exists already in the guest")
	ErrInvalid            = errors.New("invalid request")
	ErrFailedPrecondition = errors.New("not possible in the guest's present state")
	ErrPermission         = errors.New("permission denied in the guest")
	ErrTooLarge           = errors.New("too large")
	// ErrUnavailable: the guest's agent cannot be reached. The call changed
	// nothing, unless it is also ErrOutcomeUnknown.
	ErrUnavailable = errors.New("the guest's agent cannot be reached")
	// ErrOutcomeUnknown: the link broke after a call that changes something
	// was sent and before its answer came. It is also ErrUnavailable.
	ErrOutcomeUnknown = errors.New("the link to the guest broke; whether the call took effect is not known")
	// ErrProtocol: the guest answered what no agent answers.
	ErrProtocol      = errors.New("the guest's answer makes no sense")
	ErrUnimplemented = errors.New("the guest's agent does not know this call")
	ErrInternal      = errors.New("the guest's agent failed")
	ErrTruncated     = errors.New("cut off at the entry limit")
	ErrTimeout       = errors.New("timed out in the guest")
)

// Error is a failed call.
type Error struct {
	Op   string // the call
	Kind error  // one of the kinds above
	Err  error  // what was said
	// unknown adds ErrOutcomeUnknown to the kind.
	unknown bool
}

// Error implements error.
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s: %v", e.Op, e.Kind)
	}
	said := text(e.Err.Error()) // the guest may have chosen it
	switch {
	case e.unknown:
		return fmt.Sprintf("%s: %v: %s", e.Op, ErrOutcomeUnknown, said)
	case e.Kind == ErrUnavailable || e.Kind == ErrProtocol: //nolint:errorlint // our own sentinels
		return fmt.Sprintf("%s: %v: %s", e.Op, e.Kind, said)
	}
	return fmt.Sprintf("%s: %s", e.Op, said)
}

// Unwrap makes the kinds visible to errors.Is.
func (e *Error) Unwrap() []error {
	out := []error{e.Kind}
	if e.unknown {
		out = append(out, ErrOutcomeUnknown)
	}
	if e.Err != nil {
		out = append(out, e.Err)
	}
	return out
}

// headerUnsent marks a Proxy's refusal of a request that never left.
const headerUnsent = "Sandboxforge-Unsent"

// errUnsent is what a round-tripper's error is when the request never left.
var errUnsent = errors.New("not sent")

// fail turns an error of a call into an Error. changes says whether the call
// changes something in the guest.
func fail(ctx context.Context, op string, changes bool, err error) error {
	if err == nil {
		return nil
	}
	var done *Error
	if errors.As(err, &done) {
		return err
	}
	var ce *connect.Error
	isConnect := errors.As(err, &ce)
	wire := isConnect && connect.IsWireError(err)
	if !wire && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	e := &Error{Op: op, Err: err}
	if !isConnect {
		e.Kind, e.unknown = ErrUnavailable, changes
		return e
	}
	said := ce.Message()
	if !wire {
		if errors.Is(err, errLongEnd) {
			e.Kind = ErrProtocol
			return e
		}
		switch ce.Code() {
		case connect.CodeResourceExhausted:
			e.Kind = ErrProtocol // larger than any agent's answer
		case connect.CodeInvalidArgument, connect.CodeInternal, connect.CodeUnimplemented:
			// An answer that can't be decoded looks like that, and so does a
			// stream that broke in the middle.
			e.Kind = ErrUnavailable
			if strings.Contains(said, "unmarshal") || strings.Contains(said, "protocol error: invalid") || ce.Code() == connect.CodeUnimplemented {
				e.Kind = ErrProtocol
			}
		default:
			e.Kind = ErrUnavailable
		}
		if e.Kind == ErrUnavailable { //nolint:errorlint // our own sentinel
			e.unknown = changes && !errors.Is(err, errUnsent)
		}
		return e
	}
	switch ce.Code() {
	case connect.CodeNotFound:
		e.Kind = ErrNotFound
	case connect.CodeAlreadyExists:
		e.Kind = ErrAlreadyExists
	case connect.CodeInvalidArgument, connect.CodeOutOfRange:
		e.Kind = ErrInvalid
	case connect.CodeFailedPrecondition, connect.CodeAborted:
		e.Kind = ErrFailedPrecondition
	case connect.CodePermissionDenied, connect.CodeUnauthenticated:
		e.Kind = ErrPermission
	case connect.CodeResourceExhausted:
		e.Kind = ErrTooLarge
	case connect.CodeUnavailable:
		e.Kind = ErrUnavailable
		e.unknown = changes
	case connect.CodeUnimplemented:
		e.Kind = ErrUnimplemented
	case connect.CodeDeadlineExceeded:
		e.Kind = ErrTimeout
	case connect.CodeCanceled:
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e.Kind, e.unknown = ErrUnavailable, changes
	default:
		e.Kind = ErrInternal
	}
	said = text(said)
	e.Err = errors.New(said)
	switch {
	case strings.HasPrefix(said, "ECONNREFUSED: "):
		e.Err = &because{said[len("ECONNREFUSED: "):], syscall.ECONNREFUSED}
	case strings.HasPrefix(said, "ENOENT: "):
		e.Err = &because{said[len("ENOENT: "):], syscall.ENOENT}
	}
	return e
}

// because is a text with an error to test for.
type because struct {
	text string
	err  error
}

func (b *because) Error() string { return b.text }
func (b *because) Unwrap() error { return b.err }

func protocolError(op, format string, args ...any) error {
	return &Error{Op: op, Kind: ErrProtocol, Err: fmt.Errorf(format, args...)}
}
