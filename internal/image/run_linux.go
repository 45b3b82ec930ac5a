package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// killGrace is how long a cancelled child may clean up after itself.
const killGrace = 10 * time.Second

// tailSize is how much of a child's messages an error quotes, in bytes.
const tailSize = 2048

// child is one run of a host program.
type child struct {
	argv   []string
	env    []string // added to the environment
	stdin  io.Reader
	stdout io.Writer
	line   func(string) // gets each line of stderr; may be nil
}

// run executes the program and waits for it and for all that it started. When
// ctx ends the whole process group is asked to end, and killed after
// killGrace; run then returns ctx's error. If this process dies, so does the
// child: the thread that starts it lives as long as it does, for the kernel's
// parent-death signal is about threads.
func run(ctx context.Context, c child) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		result <- runHere(ctx, c)
	}()
	return <-result
}

func runHere(ctx context.Context, c child) error {
	cmd := exec.Command(c.argv[0], c.argv[1:]...)
	cmd.Env = append(append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"), c.env...)
	cmd.Stdin, cmd.Stdout = c.stdin, c.stdout
	messages := &lineWriter{line: c.line}
	cmd.Stderr = messages
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.WaitDelay = time.Second
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		select {
		case <-done:
			return
		case <-ctx.Done():
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		grace := time.NewTimer(killGrace)
		defer grace.Stop()
		select {
		case <-done:
		case <-grace.C:
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
	}()
	err := cmd.Wait()
	// What the leader left behind in its group goes too.
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	close(done)
	<-killed
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	return &childError{program: c.argv[0], tail: messages.tail(), err: err}
}

// lineWriter hands complete lines on and remembers the last ones.
type lineWriter struct {
	line    func(string)
	partial bytes.Buffer
	last    []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	w.last = append(w.last, p...)
	if len(w.last) > tailSize {
		w.last = append([]byte(nil), w.last[len(w.last)-tailSize:]...)
	}
	for len(p) > 0 {
		i := bytes.IndexAny(p, "\n\r")
		if i < 0 {
			if w.partial.Len() < 4096 {
				w.partial.Write(p)
			}
			break
		}
		w.partial.Write(p[:i])
		if w.line != nil && w.partial.Len() > 0 {
			w.line(w.partial.String())
		}
		w.partial.Reset()
		p = p[i+1:]
	}
	return n, nil
}

func (w *lineWriter) tail() string {
	return strings.TrimSpace(strings.ToValidUTF8(string(w.last), "?"))
}
