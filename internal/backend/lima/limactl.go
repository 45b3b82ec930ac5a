//go:build unix

package lima

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"sandboxforge/internal/fault"
)

// program finds limactl.
func (b *Backend) program() (string, error) {
	name := b.cfg.Limactl
	if name == "" {
		name = "limactl"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fault.Wrap(err, fault.BackendUnavailable, "there is no limactl").
			Next("%s", installHint)
	}
	return filepath.Abs(path)
}

const installHint = "install Lima 2.0 or newer: `brew install lima` on macOS, or see https://lima-vm.io/docs/installation/"

// environ is this process's environment with our LIMA_HOME. Lima's own
// variables, which change what its commands do, stay out.
func (b *Backend) environ(more ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "LIMA_") {
			env = append(env, kv)
		}
	}
	env = append(env, "LIMA_HOME="+b.cfg.LimaHome)
	return append(append(env, b.cfg.Env...), more...)
}

// bounded keeps the first bytes that are written to it.
type bounded struct {
	mu  sync.Mutex
	max int
	buf bytes.Buffer
}

func (w *bounded) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(p[:min(len(p), w.max-w.buf.Len())])
	return len(p), nil
}

// run runs a limactl to its end, at most for limit: then its whole process group
// is killed, and the error is errSlow. lock, if not nil, is held until the
// command has ended, also when this process does not live to see it.
func (b *Backend) run(ctx context.Context, limit time.Duration, lock *os.File, args ...string) ([]byte, error) {
	path, err := b.program()
	if err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	timed, cancel := context.WithTimeoutCause(ctx, limit, errSlow)
	defer cancel()
	cmd := exec.CommandContext(timed, path, args...)
	cmd.Dir = "/"
	cmd.Env = b.environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	stdout, stderr := &bounded{max: maxList + 1}, &bounded{max: 64 << 10}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if lock != nil {
		cmd.ExtraFiles = []*os.File{lock}
	}
	b.log.Debug("limactl", "args", args)
	err = cmd.Run()
	if cause := context.Cause(timed); cause != nil && err != nil {
		return nil, cause
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return nil, &commandError{args: args, code: exit.ExitCode(), stderr: stderr.buf.String()}
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return nil, err
	}
	return stdout.buf.Bytes(), nil
}

// instances lists all instances, or the one that is named; none is no error.
// Where LIMA_HOME has none limactl is not asked, and need not be there.
func (b *Backend) instances(ctx context.Context, name string) ([]listed, error) {
	entries, err := os.ReadDir(b.cfg.LimaHome)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if !slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return e.IsDir() && e.Name()[0] != '_' && e.Name()[0] != '.' && (name == "" || e.Name() == name)
	}) {
		return nil, context.Cause(ctx)
	}
	out, err := b.run(ctx, queryLimit, nil, "list", "--format", "json")
	if err != nil {
		return nil, explain(err, "limactl cannot list the VMs")
	}
	all, err := parseList(out)
	if err != nil {
		return nil, fault.Wrap(err, fault.BackendCommandFailed, "limactl's listing cannot be understood").
			Next("update Lima, and run `sandboxforge doctor`")
	}
	if name == "" {
		return all, nil
	}
	for _, l := range all {
		if l.Name == name {
			return []listed{l}, nil
		}
	}
	return nil, nil
}

// instance is one instance; ok is false if there is none.
func (b *Backend) instance(ctx context.Context, name string) (l listed, ok bool, err error) {
	all, err := b.instances(ctx, name)
	if err != nil || len(all) == 0 {
		return l, false, err
	}
	return all[0], true, nil
}
