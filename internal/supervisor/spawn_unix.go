//go:build unix

package supervisor

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// stopSignals end a supervisor in order.
var stopSignals = []os.Signal{syscall.SIGTERM, syscall.SIGINT}

// ignoreSessionEnd: a hang-up is not for a process with a session of its own.
func ignoreSessionEnd() { signal.Ignore(syscall.SIGHUP) }

// detach prepares the first step of a launch.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
}

func startDetached(command func() *exec.Cmd) error {
	cmd := command()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return cmd.Process.Release()
}
