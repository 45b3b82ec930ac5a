package store

import (
	"path/filepath"
	"strings"

	"golang.org/x/sys/windows"
)

func probeFS(path string) (string, bool, error) {
	vol := filepath.VolumeName(path)
	if unc := strings.TrimPrefix(vol, `\\?\UNC`); strings.HasPrefix(unc, `\\`) && !strings.HasPrefix(unc, `\\?\`) || unc != vol {
		return "a network share", true, nil
	}
	root, err := windows.UTF16PtrFromString(vol + `\`)
	if err != nil {
		return "", false, err
	}
	if windows.GetDriveType(root) == windows.DRIVE_REMOTE {
		return "a network drive", true, nil
	}
	return "local drive", false, nil
}
