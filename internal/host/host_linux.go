package host

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

func diskFree(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", path, err)
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

// MemoryAvailable is what the kernel estimates can be had without swapping
// (MemAvailable of /proc/meminfo), and no more than the cgroup's limit leaves
// where this process runs under one.
func MemoryAvailable() (int64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	avail, err := kibibytes(b, "MemAvailable:")
	if err != nil {
		return 0, err
	}
	if left, ok := cgroupLeft(); ok && left < avail {
		avail = left
	}
	return avail, nil
}

// cgroupLeft is what this process's own cgroup (version 2) still allows. Only
// the leaf is asked: a limit further up is rarer than the cost of walking.
func cgroupLeft() (int64, bool) {
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	_, path, ok := strings.Cut(strings.TrimSpace(string(self)), "0::")
	if !ok {
		return 0, false
	}
	path, _, _ = strings.Cut(path, "\n")
	limit, err1 := number("/sys/fs/cgroup" + path + "/memory.max")
	used, err2 := number("/sys/fs/cgroup" + path + "/memory.current")
	if err1 != nil || err2 != nil {
		return 0, false
	}
	return max(0, limit-used), true
}

func number(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// ProcessPSS is the memory of a process with shared pages counted in
// proportion. It is zero for a process that is gone or another user's.
func ProcessPSS(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0
	}
	n, err := kibibytes(b, "Pss:")
	if err != nil {
		return 0
	}
	return n
}

// ProcessPrivate is the resident memory of a process that is no file's, zero
// where it is gone: of a VM that began in a template, what it does not share
// with it. It costs far less than ProcessPSS.
func ProcessPrivate(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	if len(f) < 3 {
		return 0
	}
	resident, err1 := strconv.ParseInt(f[1], 10, 64)
	ofFiles, err2 := strconv.ParseInt(f[2], 10, 64)
	if err1 != nil || err2 != nil {
		return 0
	}
	return max(0, resident-ofFiles) * int64(os.Getpagesize())
}

// kibibytes finds "key  N kB" in the text of a proc file.
func kibibytes(text []byte, key string) (int64, error) {
	for sc := bufio.NewScanner(bytes.NewReader(text)); sc.Scan(); {
		rest, ok := strings.CutPrefix(sc.Text(), key)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s %q is no number: %w", key, rest, err)
		}
		return n << 10, nil
	}
	return 0, fmt.Errorf("no %s", key)
}
