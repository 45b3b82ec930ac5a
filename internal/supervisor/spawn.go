package supervisor

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// sessionVars belong to the process that was started with them, not to its
// descendants.
var sessionVars = []string{"NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_USEC", "WATCHDOG_PID", "INVOCATION_ID", "JOURNAL_STREAM"}

func childEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		k, _, _ := strings.Cut(kv, "=")
		return slices.Contains(sessionVars, k)
	})
}

// spawnDetached starts the supervisor in a session of its own, reporting to
// status, with standard error in the instance's log and nothing else of ours.
func spawnDetached(dir, spec string, status *os.File) error {
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	exe, err := executable()
	if err != nil {
		return err
	}
	return startDetached(func() *exec.Cmd {
		cmd := exec.Command(exe, superviseArg, runArg, spec)
		cmd.Dir = rootOf(dir)
		cmd.Stdout, cmd.Stderr = status, log
		return cmd
	})
}

// rootOf is a working directory that nobody wants to remove.
func rootOf(dir string) string {
	return filepath.VolumeName(dir) + string(filepath.Separator)
}
