package powershell

import (
	"errors"
	"fmt"
	"strings"
)

// ErrUnknown: the request may have had its effect, or have it yet. The process
// hung or ended, or the caller did not wait.
var ErrUnknown = errors.New("the outcome of the PowerShell request is unknown")

// Error is what a script failed with: the error record that its runner caught.
type Error struct {
	ID       string // FullyQualifiedErrorId, as in ObjectNotFound,Microsoft.HyperV.PowerShell.Commands.GetVM
	Category string // as in PermissionDenied
	Command  string // the cmdlet
	HResult  uint32 // of the exception
	Inner    uint32 // of the exception in it, 0 if there is none
	Message  string // in the language of Windows, for people alone
}

func (e *Error) Error() string {
	code := e.HResult
	if e.Inner != 0 {
		code = e.Inner
	}
	return fmt.Sprintf("%s: %s [%s, 0x%08X]", e.Command, e.Message, e.ID, code)
}

// Kind is the identifier up to the class of the cmdlet, as ObjectNotFound.
func (e *Error) Kind() string {
	kind, _, _ := strings.Cut(e.ID, ",")
	return kind
}

// HasCode reports whether one of the exceptions carries the HRESULT.
func (e *Error) HasCode(codes ...uint32) bool {
	for _, c := range codes {
		if e.HResult == c || e.Inner == c {
			return true
		}
	}
	return false
}
