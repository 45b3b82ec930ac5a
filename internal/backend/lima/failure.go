package lima

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// commandError is a limactl that failed.
type commandError struct {
	args   []string
	code   int
	stderr string
}

func (e *commandError) Error() string {
	said := e.said()
	if said == "" {
		said = fmt.Sprintf("exit status %d", e.code)
	}
	return fmt.Sprintf("limactl %s: %s", e.args[0], said)
}

var fatalLine = regexp.MustCompile(`level=(?:fatal|error) msg=("(?:[^"\\]|\\.)*"|\S+)`)

// said is what limactl gave as the reason: its fatal line, or the last one.
func (e *commandError) said() string {
	text := strings.TrimSpace(e.stderr)
	if all := fatalLine.FindAllStringSubmatch(text, -1); len(all) > 0 {
		m := all[len(all)-1][1]
		m = strings.TrimSuffix(strings.TrimPrefix(m, `"`), `"`)
		return printable(strings.NewReplacer(`\"`, `"`, `\n`, " ", `\\`, `\`).Replace(m))
	}
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	return printable(text)
}

func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r == '\ufffd' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, " "))
	if len(s) > 500 {
		s = strings.ToValidUTF8(s[:500], "") + "…"
	}
	return strings.TrimSpace(s)
}

// failures are what limactl is known to say, by the kind that it means.
var failures = []struct {
	pattern *regexp.Regexp
	kind    error
	code    fault.Code
}{
	{regexp.MustCompile("instance `[^`]*` already exists"), backend.ErrExists, fault.BackendCommandFailed},
	{regexp.MustCompile("instance `[^`]*` (?:does not exist|not found)|lima\\.yaml: no such file"), backend.ErrNotFound, fault.InstanceNotFound},
	{regexp.MustCompile("instance `[^`]*` is stopped|expected status `Running`"), backend.ErrNotRunning, fault.BackendCommandFailed},
	{regexp.MustCompile("expected status `Stopped`, got `Running`|seems running"), backend.ErrRunning, fault.BackendCommandFailed},
	{regexp.MustCompile("must not run as the root user"), nil, fault.BackendUnavailable},
	{regexp.MustCompile("(?i)no space left on device"), nil, fault.InsufficientDisk},
	{regexp.MustCompile("(?i)cannot allocate memory"), nil, fault.InsufficientHostResources},
}

// errSlow: a limactl that did not end in time and was killed.
var errSlow = errors.New("limactl did not end in time")

// explain makes the fault of a failed command. An error of ctx stays what it is.
func explain(err error, what string) error {
	if err == nil {
		return nil
	}
	var f *fault.Error
	if errors.As(err, &f) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	code := fault.BackendCommandFailed
	var c *commandError
	if errors.As(err, &c) {
		for _, known := range failures {
			if known.pattern.MatchString(c.stderr) {
				if code = known.code; known.kind != nil {
					err = errors.Join(known.kind, err)
				}
				break
			}
		}
	}
	e := fault.Wrap(err, code, "%s", what)
	switch {
	case code == fault.BackendUnavailable:
		e.Because("limactl refuses to run as root").Next("run SandboxForge as an ordinary user")
	case errors.Is(err, errSlow):
		e.Because("limactl hangs, or the host is overloaded").Next("try again; if it stays so, look at what `limactl list` says with LIMA_HOME set to the backend's directory")
	case c != nil:
		e.Because("%s", c.Error()).With("stderr", printable(tail(c.stderr, 2000)))
	}
	return e
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

func notFound(name string) error {
	return fault.Wrap(backend.ErrNotFound, fault.InstanceNotFound, "no VM %.60q", name)
}

func running(name string) error {
	return fault.Wrap(backend.ErrRunning, fault.BackendCommandFailed, "the VM %s runs already", name).
		Next("stop it first, or delete it")
}

func broken(name, detail string) error {
	return fault.New(fault.BackendCommandFailed, "the VM %s is broken", name).Because("%s", detail).Next("delete it and create another one")
}

// Deadlines of the commands, far above what they were seen to take: a command
// that has not ended by then does not end.
const (
	queryLimit  = 30 * time.Second
	createLimit = 30 * time.Minute // downloads an image the first time
	cloneLimit  = 10 * time.Minute // copies a disk
	forceLimit  = 30 * time.Second
	launchLimit = 10 * time.Minute // to the hypervisor's start, the disk's conversion included
	undoLimit   = time.Minute
)
