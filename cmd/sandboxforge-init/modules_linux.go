package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Two lists, one file name a line, dependencies first. The first is in the
// initrd and names files beside it; the second is in the root file system and
// names files under /usr/lib/modules/RELEASE.
const (
	earlyModules = "/modules/list"
	lateModules  = "/usr/lib/sandboxforge/modules"
)

// loadList loads the modules that a list names, in its order, from dir. A
// module that cannot be loaded does not stop the others; a missing list is
// empty.
func loadList(list, dir string) error {
	text, err := os.ReadFile(list)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var failed []error
	for _, name := range strings.Fields(string(text)) {
		if err := loadModule(filepath.Join(dir, name)); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", name, err))
		}
	}
	return errors.Join(failed...)
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.FinitModule(int(f.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// release is the running kernel's release, as uname -r prints it.
func release() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", err
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}
