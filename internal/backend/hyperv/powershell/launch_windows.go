package powershell

import (
	"errors"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// SystemPath is the powershell.exe of Windows. What a PATH leads to is not
// asked: it would be anybody's.
func SystemPath() string {
	dir, err := windows.GetSystemDirectory()
	if err != nil {
		return ""
	}
	if runtime.GOARCH == "386" { // System32 is another directory for these
		if win, err := windows.GetSystemWindowsDirectory(); err == nil {
			dir = filepath.Join(win, "Sysnative")
		}
	}
	return filepath.Join(dir, "WindowsPowerShell", "v1.0", "powershell.exe")
}

// launch starts the process without a window, but with a console: without one
// [Console] fails. It is in a job that ends with us, so no PowerShell is left
// when we are killed. Between start and job nothing is run: stdin is empty.
func launch(cmd *exec.Cmd) (end func(gone bool), err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NO_WINDOW | windows.CREATE_NEW_PROCESS_GROUP}
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return nil, err
	}
	info := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{
		BasicLimitInformation: windows.JOBOBJECT_BASIC_LIMIT_INFORMATION{LimitFlags: windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE},
	}
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		windows.CloseHandle(job)
		return nil, err
	}
	if err := assign(job, cmd.Process.Pid); err != nil {
		windows.CloseHandle(job)
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	var once sync.Once
	return func(bool) {
		once.Do(func() {
			windows.TerminateJobObject(job, 1)
			windows.CloseHandle(job)
			cmd.Process.Kill()
		})
	}, nil
}

func assign(job windows.Handle, pid int) error {
	p, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(pid))
	if err != nil {
		return err
	}
	defer windows.CloseHandle(p)
	return windows.AssignProcessToJobObject(job, p)
}
