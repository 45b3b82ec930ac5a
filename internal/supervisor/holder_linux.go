package supervisor

import (
	"os"
	"path/filepath"
	"strconv"
)

// mayHold reports whether a process has the lock's file open, without which it
// cannot hold the lock.
func mayHold(pid int, lock string) bool {
	want, err := os.Stat(lock)
	if err != nil {
		return false
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if st, err := os.Stat(filepath.Join(dir, fd.Name())); err == nil && os.SameFile(st, want) {
			return true
		}
	}
	return false
}
