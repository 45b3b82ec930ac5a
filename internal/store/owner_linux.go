package store

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
)

// bootID is the kernel's random id of this boot.
var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

// processStart is the process's start in clock ticks since boot. running is
// false for a process that is gone or a zombie, and true when /proc is silent.
func processStart(pid int) (start string, running bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", !errors.Is(err, fs.ErrNotExist)
	}
	// The command's name is in parentheses and may itself hold any byte.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return "", true
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 20 {
		return "", true
	}
	if f[0] == "Z" || f[0] == "X" {
		return "", false
	}
	return f[19], true
}
