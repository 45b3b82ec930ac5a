package readme

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"
)

const repo = "../.."

type block struct{ lang, text string }

// commands are what a block shows after a prompt.
func (b block) commands() []string {
	var out []string
	for line := range strings.Lines(b.text) {
		if command, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "$ "); ok {
			out = append(out, comment.ReplaceAllString(command, ""))
		}
	}
	return out
}

var comment = regexp.MustCompile(`\s+#.*`)

// blocks are the fenced code blocks of a page.
func blocks(t *testing.T, name string) []block {
	t.Helper()
	f, err := os.Open(filepath.Join(repo, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []block
	var in *block
	for sc := bufio.NewScanner(f); sc.Scan(); {
		line := sc.Text()
		switch lang, fence := strings.CutPrefix(line, "```"); {
		case fence && in == nil:
			in = &block{lang: lang}
		case fence:
			out = append(out, *in)
			in = nil
		case in != nil:
			in.text += line + "\n"
		}
	}
	return out
}

// TestCommands runs every command of README.md, except the two that run this
// test or are run beside it, which must be named here. The calls by curl are
// made while `make run` serves.
func TestCommands(t *testing.T) {
	elsewhere := map[string]string{
		"make demo": "run by .ci/run, and as `sandboxforge demo` by test/e2e",
		"make test": "runs this",
	}
	home := t.TempDir()
	port := freePort(t)
	env := append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME=", "XDG_STATE_HOME=", "MAKEFLAGS=", "MCP_HTTP_PORT="+port)
	if os.Getenv("SANDBOX_IMAGE_DIR") == "" {
		abs, err := filepath.Abs(filepath.Join(repo, ".build", "images"))
		if err != nil {
			t.Fatal(err)
		}
		env = append(env, "SANDBOX_IMAGE_DIR="+abs)
	}
	// Go keeps its caches where they are: the commands are tested, not a
	// first download.
	for _, k := range []string{"GOMODCACHE", "GOCACHE", "GOPATH"} {
		out, err := exec.Command("go", "env", k).Output()
		if err != nil {
			t.Fatal(err)
		}
		env = append(env, k+"="+strings.TrimSpace(string(out)))
	}
	var typed []string
	var byHand *exec.Cmd
	for _, b := range blocks(t, "README.md") {
		if b.lang != "console" {
			continue
		}
		commands := b.commands()
		if !strings.Contains(b.text, "curl ") {
			typed = append(typed, commands...)
			continue
		}
		// In one shell, for they build on each other.
		byHand = exec.CommandContext(t.Context(), "sh", "-ec", strings.ReplaceAll(strings.Join(commands, "\n"), "8765", port))
		byHand.Dir, byHand.Env = t.TempDir(), env
	}
	if byHand == nil {
		t.Fatal("README.md has no calls by curl")
	}
	for _, command := range typed {
		if why := elsewhere[command]; why != "" {
			t.Logf("%s: %s", command, why)
			continue
		}
		t.Run(command, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "sh", "-c", command)
			cmd.Dir, cmd.Env = repo, env
			if command == "make run" {
				serves(t, cmd, port, byHand)
				return
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	if len(typed) < 6 {
		t.Errorf("only %d commands were found in README.md", len(typed))
	}
}

// serves starts a server command, asks what README.md says of its answers,
// makes the calls that README.md makes by hand, and ends it.
func serves(t *testing.T, cmd *exec.Cmd, port string, byHand *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	listens := make(chan bool, 1)
	go func() {
		sc := bufio.NewScanner(errs)
		for sc.Scan() {
			fmt.Fprintln(&log, sc.Text())
			if strings.Contains(sc.Text(), port) {
				select {
				case listens <- true:
				default:
				}
			}
		}
		close(listens)
		_, _ = io.Copy(io.Discard, errs)
	}()
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		_ = cmd.Wait() // make reports the signal as a failure
	}()
	if !<-listens {
		t.Fatalf("it ended without listening:\n%s", log.String())
	}
	for path, want := range map[string]int{"/": http.StatusNotFound, "/mcp/": http.StatusNotFound, "/mcp": http.StatusNotAcceptable} {
		resp, err := http.Get("http://127.0.0.1:" + port + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("GET %s: %d, want %d", path, resp.StatusCode, want)
		}
	}
	out, err := byHand.CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"protocolVersion":"2025-11-25"`) || !strings.Contains(string(out), `"instances":[]`) || strings.Contains(string(out), `"error"`) {
		t.Errorf("the calls by hand: %v\n%s", err, out)
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestSnippets parses what people paste into their clients' configuration.
func TestSnippets(t *testing.T) {
	parsed := 0
	for _, b := range blocks(t, "README.md") {
		var v any
		var err error
		switch b.lang {
		case "json":
			err = json.Unmarshal([]byte(b.text), &v)
		case "toml":
			err = toml.Unmarshal([]byte(b.text), &v)
		default:
			continue
		}
		parsed++
		if err != nil {
			t.Errorf("%v in\n%s", err, b.text)
		}
	}
	if parsed < 4 {
		t.Errorf("only %d snippets were found", parsed)
	}
}

// TestLinks follows the links between the project's own pages.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)[^)]*\)`)
	pages, err := filepath.Glob(filepath.Join(repo, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	top, err := filepath.Glob(filepath.Join(repo, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, p := range append(pages, top...) {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(b), -1) {
			checked++
			if _, err := os.Stat(filepath.Join(filepath.Dir(p), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", p, m[1], err)
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d links were found", checked)
	}
}
