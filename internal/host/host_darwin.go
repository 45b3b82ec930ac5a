package host

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func diskFree(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", path, err)
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

// MemoryAvailable is estimated from the free and inactive share that the
// kernel reports as its free level (kern.memorystatus_level, percent).
func MemoryAvailable() (int64, error) {
	total, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0, err
	}
	level, err := unix.SysctlUint32("kern.memorystatus_level")
	if err != nil {
		return int64(total), nil
	}
	return int64(total / 100 * uint64(min(level, 100))), nil
}

// ProcessPSS is not told by this system.
func ProcessPSS(int) int64 { return 0 }

// ProcessPrivate is not told cheaply by this system.
func ProcessPrivate(int) int64 { return 0 }
