//go:build unix

package template

import (
	"errors"
	"os"
	"syscall"
)

// allocated is what a file takes up on the disk, in bytes.
func allocated(info os.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int64(st.Blocks) * 512
	}
	return info.Size()
}

// syncPath has a file or a directory written to the disk.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
