package supervisor

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// scopeTimeout is how long systemd-run may take to reach our code before the
// launch goes on without it.
const scopeTimeout = 3 * time.Second

// scopeCommand starts exe in a transient scope of the user's own service
// manager, which neither the end of a login session nor that of the unit of
// an IDE touches. nil where there is no such manager.
func scopeCommand(exe string) []string {
	run := os.Getenv("XDG_RUNTIME_DIR")
	if run == "" {
		return nil
	}
	// The same socket that systemd-run --user uses; nobody behind it means
	// that it could only fail, slowly.
	c, err := net.DialTimeout("unix", filepath.Join(run, "systemd", "private"), 200*time.Millisecond)
	if err != nil {
		return nil
	}
	c.Close()
	path, err := exec.LookPath("systemd-run")
	if err != nil {
		return nil
	}
	return []string{path, "--user", "--scope", "--quiet", "--collect", "--description=SandboxForge VM", "--", exe}
}
