//go:build !unix

package standin

import "errors"

// Real VMs are for systems where the stand-in runs.
type Real struct {
	Binary, Kernel, Initrd, Append string
	Addresses                      bool
}

var errNoQEMU = errors.New("there are no real VMs here")

func imageInfo(string) (disk, error) { return disk{}, errNoQEMU }
func makeChild(string, disk) error   { return errNoQEMU }
func (r *Real) boot(*VM) error       { return errNoQEMU }
func (r *Real) press(*VM) error      { return errNoQEMU }
func (r *Real) release(*VM)          {}
func (r *Real) cut(*VM) error        { return errNoQEMU }
func (v *VM) alive() bool            { return false }
