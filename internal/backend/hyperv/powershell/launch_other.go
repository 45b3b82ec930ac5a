//go:build !windows

package powershell

import (
	"os/exec"
	"syscall"
)

// SystemPath is empty: there is no Windows PowerShell here. Tests bring what
// takes its place.
func SystemPath() string { return "" }

// launch starts what takes the place of PowerShell in a group of its own.
func launch(cmd *exec.Cmd) (end func(gone bool), err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	pid := cmd.Process.Pid
	return func(gone bool) {
		if !gone { // or the number may be another's
			syscall.Kill(-pid, syscall.SIGKILL)
		}
	}, nil
}
