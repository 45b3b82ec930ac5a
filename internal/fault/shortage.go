package fault

import (
	"errors"
	"syscall"
)

// shortage is the code for what the host had too little of when a system call
// failed, "" if that is not why.
func shortage(err error) Code {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return InsufficientDisk
	case errors.Is(err, syscall.ENOMEM):
		return InsufficientHostResources
	}
	return ""
}
