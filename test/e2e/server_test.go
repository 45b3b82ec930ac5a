package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxforge/internal/fault"
)

// state is a SANDBOXFORGE_HOME of one test, or of those that share one.
type state struct {
	bin       string // the binaries
	home      string
	workspace string
	env       []string
}

// newState makes a state directory with a workspace in it. The path is short
// because sockets live below it.
func newState(t testing.TB, env ...string) *state {
	t.Helper()
	s, err := makeState(env...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func makeState(env ...string) (*state, error) {
	dir, err := os.MkdirTemp("", "sbxtest-")
	if err != nil {
		return nil, err
	}
	s := &state{bin: binDir, home: filepath.Join(dir, "h"), workspace: filepath.Join(dir, "work")}
	if err := os.MkdirAll(s.workspace, 0o755); err != nil {
		return nil, err
	}
	s.env = append(os.Environ(),
		"HOME="+dir, "XDG_CONFIG_HOME=", "SANDBOXFORGE_HOME="+s.home, "SANDBOX_IMAGE_DIR="+imageDir, "SANDBOX_ACCEL="+accel,
		"MCP_ENABLE_HTTP=0", "MCP_ENABLE_STDIO=1", "MAX_INSTANCES=8", "SANDBOX_LOG_LEVEL=debug",
		"SANDBOX_SWEEPER_INTERVAL_SECONDS=2")
	s.env = append(s.env, env...)
	return s, nil
}

// close destroys what is left, by the command that users have for it, and
// removes the directory.
func (s *state) close() error {
	var errs []error
	if out, err := s.cli("ps", "--json"); err == nil {
		var list struct {
			Instances []struct {
				InstanceID string `json:"instance_id"`
			} `json:"instances"`
		}
		if err := json.Unmarshal(out, &list); err != nil {
			errs = append(errs, fmt.Errorf("ps --json: %w: %.200s", err, out))
		}
		for _, i := range list.Instances {
			if out, err := s.cli("destroy", "--force", i.InstanceID); err != nil {
				errs = append(errs, fmt.Errorf("destroy %s: %w: %s", i.InstanceID, err, out))
			}
		}
	}
	for _, p := range s.left() {
		errs = append(errs, fmt.Errorf("still running: %s", p))
	}
	if errs == nil {
		errs = append(errs, os.RemoveAll(filepath.Dir(s.home)))
	}
	return errors.Join(errs...)
}

// cli runs the command line on this state.
func (s *state) cli(args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "sandboxforge"), args...)
	cmd.Env = s.env
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, errs.Bytes())
	}
	return out, err
}

// processes lists hypervisors and supervisors of this state that are alive.
func (s *state) processes() []string {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var found []string
	for _, d := range dirs {
		cmd, err := os.ReadFile(filepath.Join(d, "cmdline"))
		if err != nil || len(cmd) == 0 || !bytes.Contains(cmd, []byte(filepath.Dir(s.home)+"/")) {
			continue
		}
		if bytes.Contains(cmd, []byte("qemu-system")) || bytes.Contains(cmd, []byte("__supervise")) {
			found = append(found, filepath.Base(d)+": "+strings.ReplaceAll(string(cmd[:min(len(cmd), 160)]), "\x00", " "))
		}
	}
	return found
}

// left is processes where there should be none: a supervisor that has let go of
// everything takes a moment to end.
func (s *state) left() (all []string) {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if all = s.processes(); all == nil || time.Now().After(end) {
			return all
		}
	}
}

// server is a running server binary and a client connected to it over stdio.
type server struct {
	*state
	cmd     *exec.Cmd
	session *mcp.ClientSession
	log     *lockedBuffer

	mu       sync.Mutex
	progress []string
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start starts a server on this state.
func (s *state) start(t testing.TB, env ...string) *server {
	t.Helper()
	sv, err := s.startServer(env...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		sv.session.Close()
		if t.Failed() {
			t.Logf("server log:\n%s", lastBytes(sv.log.String(), 20_000))
		}
	})
	return sv
}

func lastBytes(s string, n int) string { return s[max(0, len(s)-n):] }

func (s *state) startServer(env ...string) (*server, error) {
	sv := &server{state: s, log: &lockedBuffer{}}
	sv.cmd = exec.Command(filepath.Join(s.bin, "sandboxforge-mcp-server"))
	sv.cmd.Env = append(append([]string{}, s.env...), env...)
	sv.cmd.Stderr = sv.log
	sv.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	client := mcp.NewClient(&mcp.Implementation{Name: "e2e", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			sv.mu.Lock()
			defer sv.mu.Unlock()
			sv.progress = append(sv.progress, r.Params.Message)
		},
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if sv.session, err = client.Connect(ctx, &mcp.CommandTransport{Command: sv.cmd}, nil); err != nil {
		return nil, fmt.Errorf("connect: %w\n%s", err, sv.log.String())
	}
	return sv, nil
}

// kill ends the server as a crash would.
func (sv *server) kill(t testing.TB) {
	t.Helper()
	if err := sv.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	sv.session.Close()
}

// toolError is a failed tool call as a client sees it.
type toolError struct {
	Code    fault.Code     `json:"error_code"`
	Message string         `json:"message"`
	Details map[string]any `json:"details"`
}

func (e *toolError) Error() string { return string(e.Code) + ": " + e.Message }

// call calls a tool and decodes its structured result into out.
func (sv *server) call(ctx context.Context, tool string, args, out any) error {
	p := &mcp.CallToolParams{Name: tool, Arguments: args}
	p.SetProgressToken(tool)
	res, err := sv.session.CallTool(ctx, p)
	if err != nil {
		return fmt.Errorf("%s: %w", tool, err)
	}
	if res.IsError {
		te := &toolError{}
		text, ok := res.Content[0].(*mcp.TextContent)
		if !ok || json.Unmarshal([]byte(text.Text), te) != nil || te.Code == "" {
			return fmt.Errorf("%s: an error that is no tool error: %+v", tool, res.Content)
		}
		if res.StructuredContent != nil {
			return fmt.Errorf("%s: an error with structured content", tool)
		}
		return te
	}
	b, err := json.Marshal(res.StructuredContent)
	if err != nil {
		return err
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(b, out)
}

// must is call for what has to succeed.
func (sv *server) must(t testing.TB, tool string, args, out any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	if err := sv.call(ctx, tool, args, out); err != nil {
		var te *toolError
		if errors.As(err, &te) {
			d, _ := json.Marshal(te.Details)
			t.Fatalf("%s: %v: %s", tool, err, d)
		}
		t.Fatal(err)
	}
}

// fails is call for what has to fail with a code.
func (sv *server) fails(t testing.TB, code fault.Code, tool string, args any) *toolError {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	err := sv.call(ctx, tool, args, nil)
	var te *toolError
	if !errors.As(err, &te) {
		t.Fatalf("%s %v: %v, want %s", tool, args, err, code)
	}
	if te.Code != code {
		t.Fatalf("%s %v: %v, want %s", tool, args, err, code)
	}
	if te.Message == "" || te.Details["probable_cause"] == "" || te.Details["next_steps"] == nil {
		t.Errorf("%s %v: the error leaves the reader alone: %+v", tool, args, te)
	}
	return te
}

type obj = map[string]any
