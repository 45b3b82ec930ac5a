package host

import (
	"io/fs"
	"os"
	"path/filepath"
)

// FileAllocated is what a file takes up on the disk, in bytes, holes left out
// where the system tells; zero where it is gone.
func FileAllocated(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return allocated(info)
}

// TreeAllocated is what the regular files below a directory take up on the
// disk, in bytes. What cannot be looked at counts as nothing.
func TreeAllocated(dir string) (n int64) {
	filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error { //nolint:errcheck // the function never fails
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		if info, err := d.Info(); err == nil {
			n += allocated(info)
		}
		return nil
	})
	return n
}
