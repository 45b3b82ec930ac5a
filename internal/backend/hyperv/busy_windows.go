package hyperv

import (
	"errors"

	"golang.org/x/sys/windows"
)

// isBusy: somebody has the file open, an antivirus program most likely, or
// Hyper-V has not closed it yet. It passes.
func isBusy(err error) bool {
	return errors.Is(err, windows.ERROR_SHARING_VIOLATION) || errors.Is(err, windows.ERROR_ACCESS_DENIED) ||
		errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_DIR_NOT_EMPTY)
}

// unusable says why Hyper-V would refuse the file as a virtual disk, or "".
func unusable(path string) string {
	p, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return err.Error()
	}
	attributes, err := windows.GetFileAttributes(p)
	switch {
	case err != nil:
		return err.Error()
	case attributes&windows.FILE_ATTRIBUTE_SPARSE_FILE != 0:
		return "it is sparse: run `fsutil sparse setflag \"" + path + "\" 0`"
	case attributes&windows.FILE_ATTRIBUTE_COMPRESSED != 0:
		return "it is compressed: run `compact /u \"" + path + "\"`"
	case attributes&windows.FILE_ATTRIBUTE_ENCRYPTED != 0:
		return "it is encrypted: run `cipher /d \"" + path + "\"`"
	}
	return ""
}
