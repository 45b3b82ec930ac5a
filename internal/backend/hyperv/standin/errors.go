package standin

import "fmt"

// psError is an error record, and the exception in it.
type psError struct {
	id        string // FullyQualifiedErrorId
	category  string
	exception string // its type's name
	hresult   int64
	inner     int64 // HRESULT of the inner exception; 0: there is none
	message   string
	command   string
	target    string
	// ends: it ends the statement whatever ErrorAction says.
	ends bool
}

func (e *psError) Error() string {
	return fmt.Sprintf("%s: %s (%s, %s)", e.command, e.message, e.category, e.id)
}

// hr is a 32-bit HRESULT as .NET shows it.
func hr(code uint32) int64 { return int64(int32(code)) }

// What the cmdlets of the module throw. The classes and identifiers are those
// that users of Hyper-V have reported.
const (
	vmException  = "Microsoft.HyperV.PowerShell.VirtualizationException"
	vhdException = "Microsoft.Vhd.PowerShell.VirtualizationException"
)

// The HRESULTs that they carry.
const (
	eFail            = 0x80004005
	eInvalidArgument = 0x80070057
	eFileNotFound    = 0x80070002
	ePathNotFound    = 0x80070003
	eFileExists      = 0x80070050
	eSharing         = 0x80070020
	eOutOfMemory     = 0x8007000E
	eAccessDenied    = 0x80070005
	eNotADisk        = 0xC03A0015
	eParentMissing   = 0xC03A000D
	eIDMismatch      = 0xC03A000E
	eCorException    = 0x80131500
)

// vmError is an error of a cmdlet of the Hyper-V module.
func vmError(c *invocation, id, category string, code uint32, format string, args ...any) *psError {
	return &psError{
		id: id + "," + c.class(), category: category, exception: vmException,
		hresult: hr(eCorException), inner: hr(code), message: fmt.Sprintf(format, args...), command: c.cmdlet.name,
	}
}

// bindingError is what the parameter binder throws.
func bindingError(name, id, format string, args ...any) *psError {
	return &psError{
		id: id + "," + name, category: "InvalidArgument", exception: "System.Management.Automation.ParameterBindingException",
		hresult: hr(0x80131501), message: fmt.Sprintf(format, args...), command: name, ends: true,
	}
}

// runtimeError is what the language itself throws.
func runtimeError(id, category, format string, args ...any) *psError {
	return &psError{
		id: id, category: category, exception: "System.Management.Automation.RuntimeException",
		hresult: hr(0x80131501), message: fmt.Sprintf(format, args...), ends: true,
	}
}

// unknownHere: the stand-in does not know what PowerShell would do.
func unknownHere(format string, args ...any) *psError {
	return runtimeError("OutsideOfTheStandIn", "NotImplemented", "stand-in: "+format, args...)
}

// record is the ErrorRecord that catch sees.
func (e *psError) record() *object {
	inner := any(nil)
	if e.inner != 0 {
		inner = newObject("System.ComponentModel.Win32Exception", "HResult", e.inner, "Message", e.message, "InnerException", nil)
	}
	return &object{class: "System.Management.Automation.ErrorRecord", ref: e, props: newObject("",
		"FullyQualifiedErrorId", e.id,
		"CategoryInfo", newObject("System.Management.Automation.ErrorCategoryInfo", "Category", enum{"ErrorCategory", e.category, 0}, "Activity", e.command, "Reason", e.exception, "TargetName", e.target),
		"Exception", newObject(e.exception, "HResult", e.hresult, "Message", e.message, "InnerException", inner),
	).props}
}

// block is the text that an uncaught error leaves on stderr.
func (e *psError) block() string {
	name := e.command
	if name != "" {
		name += " : "
	}
	return fmt.Sprintf("%s%s\r\n    + CategoryInfo          : %s: (%s:) [%s], %s\r\n    + FullyQualifiedErrorId : %s\r\n \r\n",
		name, e.message, e.category, e.target, e.command, e.exception, e.id)
}
