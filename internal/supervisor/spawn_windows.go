package supervisor

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/windows"
)

// stopSignals end a supervisor in order; a detached process has no console
// that could send it one, so this is for the likes of a shutdown.
var stopSignals = []os.Signal{os.Interrupt, syscall.SIGTERM}

func ignoreSessionEnd() {}

const detachedFlags = windows.DETACHED_PROCESS | windows.CREATE_NEW_PROCESS_GROUP

// detach prepares the first step of a launch.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{HideWindow: true, CreationFlags: detachedFlags}
}

// startDetached leaves the job of the caller, which may end its members when
// it is closed, if the job allows that.
func startDetached(command func() *exec.Cmd) error {
	var err error
	for _, flags := range []uint32{detachedFlags | windows.CREATE_BREAKAWAY_FROM_JOB, detachedFlags} {
		cmd := command()
		cmd.SysProcAttr = &syscall.SysProcAttr{HideWindow: true, CreationFlags: flags}
		if err = cmd.Start(); err == nil {
			return cmd.Process.Release()
		}
	}
	return err
}
