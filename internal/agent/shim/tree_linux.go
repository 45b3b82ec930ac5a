package shim

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// SignalCgroup signals every process below a cgroup directory. SIGKILL goes
// through cgroup.kill, which no process can outrun by forking.
func SignalCgroup(dir string, sig unix.Signal) error {
	if sig == unix.SIGKILL {
		err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		// Kernels before 5.14: kill until nobody is left.
		for range 200 {
			if n, err := signalProcs(dir, sig); n == 0 || err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
		}
		return errors.New("processes keep appearing in " + dir)
	}
	_, err := signalProcs(dir, sig)
	return err
}

func signalProcs(dir string, sig unix.Signal) (int, error) {
	n := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		for _, line := range bytes.Fields(b) {
			if pid, err := strconv.Atoi(string(line)); err == nil && pid > 0 {
				n++
				unix.Kill(pid, sig) //nolint:errcheck // it may be gone
			}
		}
		return nil
	})
	return n, err
}

// RemoveCgroup removes an empty cgroup and those below it.
func RemoveCgroup(dir string) {
	if unix.Rmdir(dir) == nil {
		return
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			RemoveCgroup(filepath.Join(dir, e.Name()))
		}
	}
	unix.Rmdir(dir) //nolint:errcheck // still populated
}

// SignalSession signals the processes of a session and, if parent is not 0,
// the descendants of parent (without itself). With SIGKILL it repeats until
// none is left, for those that fork meanwhile.
func SignalSession(session, parent int, sig unix.Signal) {
	for range 200 {
		pids := members(session, parent)
		if len(pids) == 0 {
			return
		}
		if sig == unix.SIGKILL {
			for _, pid := range pids {
				unix.Kill(pid, unix.SIGSTOP) //nolint:errcheck // it may be gone
			}
		}
		for _, pid := range pids {
			unix.Kill(pid, sig) //nolint:errcheck // it may be gone
		}
		if sig != unix.SIGKILL {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// members lists live processes of the session, and descendants of parent.
func members(session, parent int) []int {
	type proc struct{ ppid, session int }
	procs := map[int]proc{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// pid (comm) state ppid pgrp session; comm may contain anything.
		i := bytes.LastIndexByte(b, ')')
		if i < 0 {
			continue
		}
		f := bytes.Fields(b[i+1:])
		if len(f) < 4 || f[0][0] == 'Z' || f[0][0] == 'X' {
			continue
		}
		ppid, _ := strconv.Atoi(string(f[1]))
		sess, _ := strconv.Atoi(string(f[3]))
		procs[pid] = proc{ppid, sess}
	}
	var out []int
	for pid, p := range procs {
		in := session != 0 && p.session == session
		for up, depth := p, 0; !in && parent != 0 && depth < 1000; depth++ {
			if up.ppid == parent {
				in = true
				break
			}
			next, ok := procs[up.ppid]
			if !ok {
				break
			}
			up = next
		}
		if in && pid != parent {
			out = append(out, pid)
		}
	}
	return out
}
