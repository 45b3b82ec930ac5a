//go:build unix

package lima

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pollPause is the pause between looks at a process that is nobody's child here.
const pollPause = 50 * time.Millisecond

// pids are the processes of an instance, by the files in which Lima keeps them.
type pids struct{ hostAgent, driver int }

// lookPIDs reads the pids of an instance's processes that live. A pid file says
// who it was; that a process has the number is all that can be known cheaply.
func lookPIDs(dir string) (p pids) {
	files, err := filepath.Glob(filepath.Join(dir, "*.pid"))
	if err != nil {
		return p
	}
	for _, f := range files {
		pid := livePID(f)
		switch filepath.Base(f) {
		case "ha.pid":
			p.hostAgent = pid
		case "qemu.pid", "vz.pid", "krunkit.pid":
			if pid != 0 {
				p.driver = pid
			}
		}
	}
	return p
}

func livePID(file string) int {
	b, err := os.ReadFile(file)
	if err != nil || len(b) > 32 {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid < 2 || !alive(pid) {
		return 0
	}
	return pid
}

// alive: a process with that number exists and is no zombie, as far as can be
// told.
func alive(pid int) bool {
	if err := syscall.Kill(pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return false
	}
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		if i := strings.LastIndexByte(string(stat), ')'); i >= 0 && strings.HasPrefix(string(stat[i+1:]), " Z") {
			return false
		}
	}
	return true
}

// killAll ends the processes of an instance that still live, and returns when
// they are gone.
func killAll(ctx context.Context, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	p := lookPIDs(dir)
	for _, pid := range []int{p.hostAgent, p.driver} {
		if pid != 0 {
			syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // looked at below
		}
	}
	return awaitGone(ctx, forceLimit, p.hostAgent, p.driver)
}

// awaitGone returns when processes are gone; it fails when ctx ends or limit
// has passed.
func awaitGone(ctx context.Context, limit time.Duration, all ...int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("processes of the VM do not end: %d", all))
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		left := false
		for _, pid := range all {
			left = left || pid != 0 && alive(pid)
		}
		if !left {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func blocks(i fs.FileInfo) int64 {
	if st, ok := i.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return i.Size()
}
