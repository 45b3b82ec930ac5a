package store

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

var bootID = sync.OnceValue(func() string {
	s, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return s
})

// processStart is the process's start as seconds and microseconds since 1970.
func processStart(pid int) (start string, running bool) {
	if err := unix.Kill(pid, 0); errors.Is(err, unix.ESRCH) {
		return "", false
	}
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil || int(k.Proc.P_pid) != pid {
		return "", true
	}
	const zombie = 5 // SZOMB of sys/proc.h
	if k.Proc.P_stat == zombie {
		return "", false
	}
	return fmt.Sprintf("%d.%06d", k.Proc.P_starttime.Sec, k.Proc.P_starttime.Usec), true
}
