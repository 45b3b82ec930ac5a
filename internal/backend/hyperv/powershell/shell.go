package powershell

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"sandboxforge/internal/fault"
)

//go:embed runner.ps1
var runnerScript string

// Runner is the text of the script that runs scripts, for the checks of all
// scripts.
func Runner() string { return runnerScript }

// shell is one PowerShell process. It serves one request at a time.
type shell struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	end     func(gone bool) // ends the process, if it is not gone, and all that it started
	version string
	stderr  *tail

	replies chan []byte   // lines of stdout
	gone    chan struct{} // closed when the process has ended
	quit    chan struct{} // closed by kill
	once    sync.Once
	used    time.Time
}

// arguments of Windows PowerShell. -NonInteractive makes questions errors.
var arguments = []string{"-NoLogo", "-NoProfile", "-NonInteractive", "-ExecutionPolicy", "Bypass", "-Command", "-"}

// start starts a process and makes it ready for requests. It fails with a
// fault for a PowerShell that cannot be used.
func start(ctx context.Context, o Options) (_ *shell, err error) {
	cmd := exec.Command(o.Path, arguments...)
	cmd.Env = environment(os.Environ())
	cmd.Dir = o.Dir
	cmd.WaitDelay = 5 * time.Second
	s := &shell{cmd: cmd, stderr: &tail{}, replies: make(chan []byte), gone: make(chan struct{}), quit: make(chan struct{}), used: time.Now()}
	cmd.Stderr = s.stderr
	if s.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = w
	s.end, err = launch(cmd)
	w.Close()
	if err != nil {
		stdout.Close()
		return nil, fault.Wrap(err, fault.BackendUnavailable, "Windows PowerShell could not be started").
			Because("%s is missing, or may not be run", o.Path).
			Next("run %s by hand, and ask who manages this computer if it is blocked", o.Path)
	}
	go s.read(stdout) // ends with the process
	go func() {
		s.cmd.Wait()
		close(s.gone)
	}()
	defer func() {
		if err != nil {
			s.kill()
		}
	}()
	return s, s.greet(ctx, o)
}

// environment leaves out what a newer PowerShell that we may run under has set
// for itself: 5.1 would look for modules among those of that one.
func environment(env []string) (own []string) {
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if !strings.EqualFold(name, "PSModulePath") {
			own = append(own, kv)
		}
	}
	return own
}

// greet sets preferences, defines the runner, and asks in which language mode
// we are. It uses no methods until it knows that they are allowed.
func (s *shell) greet(ctx context.Context, o Options) error {
	nonce := newNonce()
	line := "$ErrorActionPreference = 'Stop'; $ProgressPreference = 'SilentlyContinue'; $WarningPreference = 'SilentlyContinue'; " +
		`"` + nonce + `$($ExecutionContext.SessionState.LanguageMode) $($PSVersionTable.PSVersion)` + nonce + `"`
	ctx, cancel := context.WithTimeout(ctx, o.StartLimit)
	defer cancel()
	if err := s.write(ctx, line); err != nil {
		return err
	}
	var text string
	err := s.await(ctx, func(line []byte) bool {
		var whole bool
		_, rest, _ := strings.Cut(string(line), nonce)
		text, _, whole = strings.Cut(rest, nonce)
		return whole
	})
	if err != nil {
		return fault.Wrap(err, fault.BackendUnavailable, "Windows PowerShell did not answer").
			Because("it printed: %s", s.stderr).
			Next("run %s by hand and see what keeps it from starting", o.Path)
	}
	mode, version, _ := strings.Cut(text, " ")
	s.version = version
	if mode != "FullLanguage" {
		return fault.New(fault.BackendUnavailable, "Windows PowerShell runs in the language mode %.40q", mode).
			Because("a policy of this computer (AppLocker or Windows Defender Application Control) limits it").
			Next("have SandboxForge allowed by the policy, or use it inside WSL2 with the qemu backend")
	}
	if major, _, _ := strings.Cut(version, "."); major != "5" {
		return fault.New(fault.BackendUnavailable, "%s is PowerShell %.40q, not 5.1", o.Path, version).
			Next("use the powershell.exe of Windows")
	}
	define := "$sandboxforge = [scriptblock]::Create([Text.Encoding]::UTF8.GetString([Convert]::FromBase64String('" +
		base64.StdEncoding.EncodeToString([]byte(runnerScript)) + "')))"
	return s.write(ctx, define)
}

// newNonce is letters and digits that no output has by chance.
func newNonce() string { return "sbx" + rand.Text() }

// request is the line of a request.
func request(nonce, script string, parameters []byte) string {
	return "& $sandboxforge '" + nonce + "' '" + base64.StdEncoding.EncodeToString([]byte(script)) + "' '" +
		base64.StdEncoding.EncodeToString(parameters) + "'"
}

// write sends one line. It is given up with ctx, and the shell must be killed
// then.
func (s *shell) write(ctx context.Context, line string) error {
	done := make(chan error, 1)
	go func() { // ends at the latest when the process is killed
		_, err := io.WriteString(s.stdin, line+"\n")
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// await reads lines until accept takes one.
func (s *shell) await(ctx context.Context, accept func(line []byte) bool) error {
	for {
		select {
		case line := <-s.replies:
			if accept(line) {
				return nil
			}
		case <-s.gone:
			// What it printed last may still be on its way.
			select {
			case line := <-s.replies:
				if accept(line) {
					return nil
				}
				continue
			case <-time.After(200 * time.Millisecond):
			}
			return fmt.Errorf("%w: PowerShell ended (%s): %s", ErrUnknown, s.cmd.ProcessState, s.stderr)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// read hands on the lines of stdout. One that is too long ends the process.
func (s *shell) read(r io.ReadCloser) {
	defer r.Close()
	in := bufio.NewReaderSize(r, 64<<10)
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == bufio.ErrBufferFull && len(line) <= maxLine:
			continue
		case err == bufio.ErrBufferFull:
			s.kill()
			return
		}
		select {
		case s.replies <- bytes.TrimRight(line, "\r\n"):
		case <-s.quit:
			return
		}
		if err != nil {
			return
		}
		line = nil
	}
}

// alive: the process has not ended.
func (s *shell) alive() bool {
	select {
	case <-s.gone:
		return false
	case <-s.quit:
		return false
	default:
		return true
	}
}

// kill ends the process, without waiting.
func (s *shell) kill() {
	s.once.Do(func() {
		close(s.quit)
		select {
		case <-s.gone:
			s.end(true)
		default:
			s.end(false)
		}
		s.stdin.Close()
	})
}

// tail keeps the end of what is written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailSize = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, b...)
	if extra := len(t.b) - tailSize; extra > 0 {
		t.b = append(t.b[:0], t.b[extra:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.Join(strings.Fields(strings.ToValidUTF8(string(t.b), "?")), " ")
	if text == "" {
		return "nothing on stderr"
	}
	return text
}

var errClosed = errors.New("the PowerShell pool is closed")
