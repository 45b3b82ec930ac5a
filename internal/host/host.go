// Package host measures the machine that VMs run on: processors, memory, disk
// and what a process of ours really uses. It also finds which process is at the
// other end of a connection or holds a port. It decides nothing.
//
// Every figure is in bytes and read anew at each call.
package host

import (
	"os"
	"path/filepath"
	"runtime"
)

// CPUs is the number of processors that this process may use.
func CPUs() int { return runtime.NumCPU() }

// DiskFree is the number of bytes that an ordinary user can still write to the
// file system of path. Where path does not exist yet, its nearest existing
// parent is asked.
func DiskFree(path string) (int64, error) {
	for {
		if _, err := os.Stat(path); err == nil {
			return diskFree(path)
		}
		parent := filepath.Dir(path)
		if parent == path {
			return diskFree(path)
		}
		path = parent
	}
}
