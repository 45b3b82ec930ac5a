package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandboxforge/internal/link"
)

// PortPath is the virtio port that the host's end of the link is behind.
const PortPath = "/dev/virtio-ports/org.sandboxforge.agent.0"

// ServeOptions are those of `agent serve`.
type ServeOptions struct {
	Version string
	Port    string // path of a virtio port
	Socket  string // path of a unix socket to listen on instead
	State   string // directory instead of /run/sandboxforge and /var/lib/sandboxforge
	Log     *slog.Logger
}

// portWait bounds the wait for the port to appear.
const portWait = time.Minute

// ServeGuest is the agent as a service of the guest. It returns nil when ctx
// ends.
func ServeGuest(ctx context.Context, o ServeOptions) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cfg := Config{Version: o.Version, Cgroup: "auto", Shim: shimCommand(self), IdleShims: 2, Log: o.Log}
	if o.State != "" {
		cfg.RunDir, cfg.SpoolDir = filepath.Join(o.State, "run"), filepath.Join(o.State, "spool")
	}
	a, err := New(cfg)
	if err != nil {
		return err
	}
	defer a.Close()
	if at, ok := commandLineDeadline(); ok {
		if err := a.sys.setDeadline(max(time.Until(at), time.Second)); err != nil {
			o.Log.Warn("the deadline of the kernel's command line is not armed", "error", err)
		}
	}
	var serve func() error
	if o.Socket != "" {
		l, err := listenSocket(o.Socket)
		if err != nil {
			return err
		}
		serve = func() error { return a.ServeSocket(ctx, l) }
	} else {
		port, err := openPort(ctx, o.Port)
		if err != nil {
			return err
		}
		serve = func() error { return a.Serve(ctx, link.NewListener(port)) }
	}
	announce()
	err = serve()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// shimCommand is the shim's own executable beside the agent's, which starts
// faster, or the agent's executable in that role.
func shimCommand(self string) []string {
	own := filepath.Join(filepath.Dir(self), "shim")
	if st, err := os.Stat(own); err == nil && st.Mode().IsRegular() && st.Mode()&0o100 != 0 {
		return []string{own}
	}
	return []string{self, "shim"}
}

// openPort waits for the port: its driver may still be loading, and an agent
// that was just killed may still hold it.
func openPort(ctx context.Context, path string) (*link.Port, error) {
	for deadline := time.Now().Add(portWait); ; {
		p, err := link.OpenPort(path)
		if err == nil {
			return p, nil
		}
		if real := findPort(filepath.Base(path)); real != "" {
			if p, err := link.OpenPort(real); err == nil {
				return p, nil
			}
		}
		if time.Now().After(deadline) {
			return nil, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// findPort looks a port's device up by its name where no udev makes the link.
func findPort(name string) string {
	ports, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
	for _, p := range ports {
		if b, err := os.ReadFile(p); err == nil && strings.TrimSpace(string(b)) == name {
			return "/dev/" + filepath.Base(filepath.Dir(p))
		}
	}
	return ""
}

// announce tells the console, which the host watches, that the agent is there.
func announce() {
	fd, err := unix.Open("/dev/console", unix.O_WRONLY|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	unix.Write(fd, []byte("sandboxforge-agent: ready\n")) //nolint:errcheck // a courtesy
}

// commandLine returns a key of the kernel's command line.
func commandLine(key string) string {
	b, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return ""
	}
	for f := range strings.FieldsSeq(string(b)) {
		if v, ok := strings.CutPrefix(f, key+"="); ok {
			return v
		}
	}
	return ""
}

func commandLineDeadline() (time.Time, bool) {
	s, err := strconv.ParseInt(commandLine("sandboxforge.deadline"), 10, 64)
	if err != nil || s <= 0 {
		return time.Time{}, false
	}
	return time.Unix(s, 0), true
}

var errNotPID1 = errors.New("agent init is for process 1 of a guest")
