//go:build unix

package host

import (
	"os"
	"syscall"
)

// allocated is what a file takes up on disk, in bytes.
func allocated(info os.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int64(st.Blocks) * 512
	}
	return info.Size()
}
