package qemu

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sandboxforge/internal/fault"
)

// maxToolOutput bounds what is kept of a tool's output, in bytes.
const maxToolOutput = 1 << 20

// runTool runs a short-lived program and returns its standard output. When ctx
// ends, the program's whole process group is killed; when this process ends, so
// is the program: what it writes must not appear behind the next one's back.
func (b *Backend) runTool(ctx context.Context, path string, args ...string) ([]byte, error) {
	var out, errs capped
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = toolEnv()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second
	err := onKeeper(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, cause
	}
	name := filepath.Base(path)
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, fault.Wrap(err, fault.BackendUnavailable, "%s is not installed", name).Next("%s", installHint(name))
	case err != nil:
		f := fault.Wrap(withShortage(err, errs.b.String()), fault.BackendCommandFailed, "%s %s failed", name, strings.Join(args[:min(1, len(args))], " ")).
			With("stderr", lastLines(errs.b.Bytes(), 2000))
		if line := firstLine(errs.b.Bytes()); line != "" {
			f.Because("%s", line)
		}
		return nil, f
	}
	return out.b.Bytes(), nil
}

// toolEnv is the environment of child processes: nothing of ours.
func toolEnv() []string { return []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"} }

// capped keeps the first maxToolOutput bytes.
type capped struct{ b bytes.Buffer }

func (c *capped) Write(p []byte) (int, error) {
	if room := maxToolOutput - c.b.Len(); room > 0 {
		c.b.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func firstLine(b []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(b), []byte("\n"))
	return printable(line, 300)
}

// lastLines is the end of b as text, at most max bytes.
func lastLines(b []byte, max int) string {
	b = bytes.TrimSpace(b)
	if len(b) > max {
		b = b[len(b)-max:]
		if _, rest, ok := bytes.Cut(b, []byte("\n")); ok {
			b = rest
		}
	}
	return printable(b, max)
}

// printable is foreign text without control characters other than line feeds
// and tabs, at most max bytes.
func printable(b []byte, max int) string {
	if len(b) > max {
		b = b[:max]
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0:
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(b), "?"))
}
