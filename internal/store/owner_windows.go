package store

import (
	"errors"
	"strconv"

	"golang.org/x/sys/windows"
)

// Windows gives no boot id to ordinary programs. The start time below is wall
// time, so a process of an earlier boot differs by it.
func bootID() string { return "" }

// processStart is the process's creation time in 100 ns units since 1601.
func processStart(pid int) (start string, running bool) {
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION|windows.SYNCHRONIZE, false, uint32(pid))
	if err != nil {
		return "", !errors.Is(err, windows.ERROR_INVALID_PARAMETER) // that is "no such process"
	}
	defer windows.CloseHandle(h)
	// The handle of a process is signalled once it has ended.
	if ev, err := windows.WaitForSingleObject(h, 0); err == nil && ev == windows.WAIT_OBJECT_0 {
		return "", false
	}
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(h, &created, &exited, &kernel, &user); err != nil {
		return "", true
	}
	return strconv.FormatInt(created.Nanoseconds(), 10), true
}
