package standin

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// handlers run the cmdlets, by lower-case name. A handler is called once, or
// once for each object from the pipeline.
var handlers map[string]func(c *invocation) ([]any, *psError)

func init() {
	handlers = map[string]func(c *invocation) ([]any, *psError){
		"out-null":         func(*invocation) ([]any, *psError) { return nil, nil },
		"foreach-object":   forEachObject,
		"where-object":     whereObject,
		"convertto-json":   convertToJSON,
		"convertfrom-json": convertFromJSON,
		"write-warning":    func(c *invocation) ([]any, *psError) { c.warn("%s", c.str("Message")); return nil, nil },
		"get-module":       getModule,
		"get-service":      getService,
		"get-ciminstance":  getCimInstance,
		"get-netneighbor":  getNetNeighbor,
		"get-winevent":     getWinEvent,

		"new-vhd": newVHD, "get-vhd": getVHD,
		"new-vm": newVM, "get-vm": getVM, "set-vm": setVM, "start-vm": startVM, "stop-vm": stopVM, "remove-vm": removeVM,
		"set-vmfirmware": setVMFirmware, "add-vmharddiskdrive": addVMHardDiskDrive, "add-vmdvddrive": addVMDvdDrive,
		"get-vmnetworkadapter": getVMNetworkAdapter, "set-vmnetworkadapter": setVMNetworkAdapter, "connect-vmnetworkadapter": connectVMNetworkAdapter,
		"get-vmswitch": getVMSwitch, "get-vmsnapshot": getVMSnapshot, "checkpoint-vm": checkpointVM,
		"restore-vmsnapshot": restoreVMSnapshot, "remove-vmsnapshot": removeVMSnapshot,
	}
}

func (e *evaluator) cmdlet(c *command, s *scope, input []any, piped bool, out *[]any) *psError {
	info, ok := lookupCmdlet(c.name)
	if ok && info.module == "Hyper-V" && e.world.Faults.ModuleMissing {
		ok = false
	}
	if !ok {
		return &psError{
			id: "CommandNotFoundException", category: "ObjectNotFound", exception: "System.Management.Automation.CommandNotFoundException",
			hresult: hr(0x80131501), message: fmt.Sprintf("The term '%s' is not recognized as the name of a cmdlet", c.name), command: c.name, ends: true,
		}
	}
	handler := handlers[strings.ToLower(info.name)]
	if handler == nil {
		return unknownHere("the cmdlet %s is not imitated", info.name)
	}
	b, err := e.arguments(info, c, s)
	if err != nil {
		return err
	}
	if !piped {
		input = []any{nil}
	}
	for _, item := range input {
		set, values, err := choose(info, b, item, piped)
		if err == nil {
			inv := &invocation{e: e, s: s, cmdlet: info, set: set, values: values, common: b.common, out: out}
			var outs []any
			outs, err = inv.run(handler)
			*out = append(*out, outs...)
		}
		if err == nil {
			continue
		}
		action := "Continue"
		if v, ok := s.get("erroractionpreference"); ok {
			action = text(v)
		}
		if v, ok := b.common["erroraction"]; ok {
			action = text(v)
		}
		if !err.ends {
			switch {
			case strings.EqualFold(action, "SilentlyContinue"), strings.EqualFold(action, "Ignore"):
				continue
			case !strings.EqualFold(action, "Stop"):
				io.WriteString(e.errout, err.block())
				continue
			}
		}
		return err
	}
	return nil
}

// run calls a handler, within the world's lock where it needs the world.
func (c *invocation) run(handler func(*invocation) ([]any, *psError)) ([]any, *psError) {
	switch c.cmdlet.module {
	case "Microsoft.PowerShell.Core", "Microsoft.PowerShell.Utility":
		return handler(c)
	}
	f := c.e.world.Faults
	if f.Latency > 0 {
		time.Sleep(f.Latency)
	}
	var outs []any
	var err *psError
	die, hang := false, false
	if os.Getppid() != c.e.parent {
		os.Exit(4) // a job of Windows would have ended us with our parent
	}
	uerr := Update(c.e.dir, func(w *World) {
		if takeName(&w.Faults.Hang, c.cmdlet.name) {
			hang = true
			return
		}
		c.e.world = w
		if err = c.refusal(w); err == nil {
			outs, err = handler(c)
		}
		die = takeName(&w.Faults.Die, c.cmdlet.name)
	})
	switch {
	case uerr != nil:
		return nil, unknownHere("the world: %v", uerr)
	case hang:
		for { // until somebody kills the process
			time.Sleep(time.Hour)
		}
	case die:
		os.Exit(3)
	}
	if err != nil && f.Localized {
		err.message = "Fehler beim Ausf\u00fchren des Vorgangs: \u201eZugriff\u201c \u2014 \u65e0\u6cd5\u5b8c\u6210\u64cd\u4f5c\u3002"
	}
	if f.Noise {
		fmt.Fprintf(c.e.out, "WARNING: noise of %s\r\n", c.cmdlet.name)
	}
	return outs, err
}

// refusal is what keeps every cmdlet of the module from working.
func (c *invocation) refusal(w *World) *psError {
	if e := w.Faults.Errors[c.cmdlet.name]; e.ID != "" {
		if e.Once {
			delete(w.Faults.Errors, c.cmdlet.name)
		}
		return vmError(c, e.ID, e.Category, e.HResult, "ordered by a test")
	}
	if c.cmdlet.module != "Hyper-V" {
		return nil
	}
	if strings.HasSuffix(c.cmdlet.name, "-VHD") {
		return nil // works on files
	}
	switch {
	case w.Faults.VmmsStopped:
		return vmError(c, "ObjectNotFound", "ObjectNotFound", 0x80041002,
			"Hyper-V encountered an error trying to access an object on computer 'HOST' because the object was not found. Verify that the Virtual Machine Management service on the computer is running.")
	case w.Faults.Rights == "none-error":
		return vmError(c, "AccessDenied", "PermissionDenied", eAccessDenied, "You do not have the required permission to complete this task.")
	}
	return nil
}

func takeName(list *[]string, name string) bool {
	for i, n := range *list {
		if strings.EqualFold(n, name) {
			*list = append((*list)[:i:i], (*list)[i+1:]...)
			return true
		}
	}
	return false
}

// warn writes a warning where PowerShell does: to stdout, unless silenced.
func (c *invocation) warn(format string, args ...any) {
	action, _ := c.s.get("warningpreference")
	if v, ok := c.common["warningaction"]; ok {
		action = v
	}
	if strings.EqualFold(text(action), "SilentlyContinue") {
		return
	}
	fmt.Fprintf(c.e.out, "WARNING: "+format+"\r\n", args...)
}

func forEachObject(c *invocation) ([]any, *psError) {
	var out []any
	for _, b := range elements(c.get("Process")) {
		if err := c.e.each(b.(*block), c.get("InputObject"), c.s, &out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func whereObject(c *invocation) ([]any, *psError) {
	var out []any
	item := c.get("InputObject")
	if err := c.e.each(c.get("FilterScript").(*block), item, c.s, &out); err != nil {
		return nil, err
	}
	if truth(collect(out)) {
		return []any{item}, nil
	}
	return nil, nil
}
