package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const inst = "inst_12345678"

// link is one way for a client to reach a server in this process.
type link struct {
	name    string
	version string // of the protocol
	// connect returns the client's transport, and what a client does that
	// leaves without a word (nil: it drops its request).
	connect func(t *testing.T, s *Server) (tr mcp.Transport, leave func(c *mcp.ClientSession))
}

func links() []link {
	memory := func(t *testing.T, s *Server) (mcp.Transport, func(*mcp.ClientSession)) {
		in, clientOut := io.Pipe()
		clientIn, out := io.Pipe()
		done := make(chan error, 1)
		go func() { done <- s.ServeStdio(s.root, in, out) }()
		t.Cleanup(func() {
			s.cancel()
			clientOut.Close()
			clientIn.Close()
			if err := <-done; err != nil {
				t.Errorf("ServeStdio: %v", err)
			}
		})
		return &mcp.IOTransport{Reader: clientIn, Writer: clientOut}, func(*mcp.ClientSession) {
			clientOut.Close()
			clientIn.Close()
		}
	}
	web := func(t *testing.T, s *Server) (mcp.Transport, func(*mcp.ClientSession)) {
		url := serveHTTP(t, s, HTTPOptions{Loopback: true})
		tr := &http.Transport{}
		t.Cleanup(tr.CloseIdleConnections)
		return &mcp.StreamableClientTransport{Endpoint: url + endpoint, HTTPClient: &http.Client{Transport: tr}, MaxRetries: -1}, func(c *mcp.ClientSession) {
			exchange{name: "leave", method: "DELETE", headers: map[string]string{"Mcp-Session-Id": c.ID()}, status: 204}.run(t, url)
			http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		}
	}
	return []link{
		{"stdio/2025-11-25", "2025-11-25", memory},
		{"stdio/2026-07-28", "2026-07-28", memory},
		{"http/2025-06-18", "2025-06-18", web},
		{"http/2025-11-25", "2025-11-25", web},
		{"http/2026-07-28", "2026-07-28", web},
	}
}

// everyLink runs the test over each transport in each era.
func everyLink(t *testing.T, test func(t *testing.T, f *fake, c *mcp.ClientSession, leave func(*mcp.ClientSession))) {
	for _, l := range links() {
		t.Run(l.name, func(t *testing.T) {
			checkLeaks(t)
			f := newFake()
			s := testServer(t, f)
			addChatter(s, f)
			tr, leave := l.connect(t, s)
			test(t, f, dial(t, tr, l.version, nil), leave)
		})
	}
}

func dial(t *testing.T, tr mcp.Transport, version string, o *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o).Connect(t.Context(), tr, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if got := c.InitializeResult().ProtocolVersion; version < modern && got != version {
		t.Fatalf("speaks %s", got)
	}
	return c
}

func run(ctx context.Context, c *mcp.ClientSession, command string) (*mcp.CallToolResult, error) {
	return c.CallTool(ctx, &mcp.CallToolParams{Name: "run_command", Arguments: map[string]any{"instance_id": inst, "command": command}})
}

func errorOf(t *testing.T, res *mcp.CallToolResult) map[string]any {
	t.Helper()
	var said map[string]any
	if !res.IsError || res.StructuredContent != nil || json.Unmarshal([]byte(res.Content[0].(*mcp.TextContent).Text), &said) != nil {
		t.Fatalf("not an error of the contract: %s", toJSON(res))
	}
	if res.Meta["error_code"] != said["error_code"] || res.Meta["message"] != said["message"] || res.Meta["details"] == nil {
		t.Errorf("_meta %s differs from the text %s", toJSON(res.Meta), toJSON(said))
	}
	return said
}

func TestCalls(t *testing.T) {
	everyLink(t, func(t *testing.T, _ *fake, c *mcp.ClientSession, _ func(*mcp.ClientSession)) {
		ctx := t.Context()
		tools, err := c.ListTools(ctx, nil)
		if err != nil || len(tools.Tools) < len(catalog()) {
			t.Fatalf("%d tools, %v", len(tools.Tools), err)
		}
		res, err := run(ctx, c, "echo hello")
		if err != nil || res.IsError {
			t.Fatal(err, toJSON(res))
		}
		out := res.StructuredContent.(map[string]any)
		if out["stdout"] != "hello\n" || out["exit_code"] != 0.0 || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, "hello") {
			t.Errorf("result %s", toJSON(res))
		}
		list, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "list_instances"})
		if err != nil || toJSON(list.StructuredContent.(map[string]any)["instances"]) != "[]" {
			t.Errorf("list_instances: %v %s", err, toJSON(list))
		}
		// A fault of the service.
		unknown, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "run_command", Arguments: map[string]any{"instance_id": "inst_00000000", "command": "true"}})
		if err != nil {
			t.Fatal(err)
		}
		if said := errorOf(t, unknown); said["error_code"] != "INSTANCE_NOT_FOUND" {
			t.Errorf("said %v", said)
		}
		// Arguments that do not fit are the tool's error, not the protocol's.
		for args, want := range map[string]string{
			`{"instance_id":"` + inst + `"}`:                                        "INVALID_ARGUMENT",
			`{"instance_id":"` + inst + `","command":7}`:                            "INVALID_ARGUMENT",
			`{"instance_id":"` + inst + `","command":"true","bogus":1}`:             "INVALID_ARGUMENT",
			`{"instance_id":"` + inst + `","command":"true","timeout_seconds":0}`:   "INVALID_ARGUMENT",
			`{"instance_id":"` + inst + `","command":"true","timeout_seconds":1e9}`: "INVALID_ARGUMENT",
			`{"instance_id":"i-77","command":"true"}`:                               "INSTANCE_NOT_FOUND",
		} {
			res, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "run_command", Arguments: json.RawMessage(args)})
			if err != nil {
				t.Fatalf("%s: %v", args, err)
			}
			if said := errorOf(t, res); said["error_code"] != want {
				t.Errorf("%s: %v", args, said)
			}
		}
		// An unknown tool is the protocol's error, bare.
		_, err = c.CallTool(ctx, &mcp.CallToolParams{Name: "no_such_tool"})
		if code := codeOf(err); code != jsonrpc.CodeInvalidParams {
			t.Errorf("unknown tool: %v", err)
		}
		// A handler that crashes, and one that returns nothing.
		for _, command := range []string{"panic", "nil"} {
			res, err := run(ctx, c, command)
			if err != nil {
				t.Fatalf("%s: %v", command, err)
			}
			if said := errorOf(t, res); said["error_code"] != "INTERNAL" {
				t.Errorf("%s: %v", command, said)
			}
		}
		if res, err := run(ctx, c, "echo alive"); err != nil || res.IsError {
			t.Errorf("after a crash: %v %s", err, toJSON(res))
		}
		flood, err := run(ctx, c, "flood")
		if err != nil || flood.IsError {
			t.Fatal(err)
		}
		if n := estimateTokens(toJSON(flood.StructuredContent)) + estimateTokens(toJSON(flood.Content)); n > 25000 {
			t.Errorf("a result of %d tokens", n)
		}
	})
}

func codeOf(err error) int64 {
	var w *jsonrpc.Error
	if errors.As(err, &w) {
		return w.Code
	}
	return 0
}

// One slow call never delays another.
func TestParallelCalls(t *testing.T) {
	everyLink(t, func(t *testing.T, f *fake, c *mcp.ClientSession, _ func(*mcp.ClientSession)) {
		slow := make(chan error, 1)
		go func() {
			_, err := run(t.Context(), c, "wait")
			slow <- err
		}()
		<-f.started
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				res, err := run(t.Context(), c, fmt.Sprintf("echo %d", i))
				if err != nil || res.StructuredContent.(map[string]any)["stdout"] != fmt.Sprintf("%d\n", i) {
					t.Errorf("call %d: %v %s", i, err, toJSON(res))
				}
			})
		}
		wg.Wait() // all while the slow one waits
		select {
		case err := <-slow:
			t.Fatalf("the slow call ended: %v", err)
		default:
		}
		close(f.gate)
		if err := <-slow; err != nil {
			t.Error(err)
		}
	})
}

// The client's cancel ends the handler's context, in both eras.
func TestCancel(t *testing.T) {
	everyLink(t, func(t *testing.T, f *fake, c *mcp.ClientSession, _ func(*mcp.ClientSession)) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := run(ctx, c, "block")
			done <- err
		}()
		<-f.started
		cancel()
		if err := <-done; err == nil {
			t.Error("a cancelled call succeeded")
		}
		<-f.ended
		if res, err := run(t.Context(), c, "echo still here"); err != nil || res.IsError {
			t.Errorf("after a cancel: %v", err)
		}
	})
}

// A client that leaves in the middle of a call ends the call: by closing
// stdio, by ending its HTTP session, and (without sessions) by dropping the
// request.
func TestClientGone(t *testing.T) {
	everyLink(t, func(t *testing.T, f *fake, c *mcp.ClientSession, leave func(*mcp.ClientSession)) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		go func() { defer close(done); _, _ = run(ctx, c, "block") }()
		<-f.started
		if http := c.ID() == "" && strings.Contains(t.Name(), "http"); http {
			cancel() // without sessions the request is all that can be dropped
		} else {
			leave(c)
		}
		<-f.ended
		cancel()
		<-done
	})
}

// Shutting the server down ends calls and open streams.
func TestShutdownEndsCallsAndStreams(t *testing.T) {
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			checkLeaks(t)
			f := newFake()
			s := testServer(t, f)
			web, err := s.listen(t.Context(), Config{HTTP: true, Host: "127.0.0.1"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			down := make(chan error, 1)
			go func() { down <- web.serve() }()
			tr := &http.Transport{}
			defer tr.CloseIdleConnections()
			c := dial(t, &mcp.StreamableClientTransport{Endpoint: web.url, HTTPClient: &http.Client{Transport: tr}, MaxRetries: -1}, version, nil)
			called := make(chan struct{})
			go func() { defer close(called); _, _ = run(t.Context(), c, "block") }()
			<-f.started
			s.shutdown(web, down) // the log warns if it takes more than order
			if cause := <-f.ended; cause != errShutdown.Error() {
				t.Errorf("the call ended by %q", cause)
			}
			<-called
			if n := len(s.calls.cancels); n != 0 {
				t.Errorf("%d sessions still have calls", n)
			}
		})
	}
}

func TestProgress(t *testing.T) {
	for _, l := range links() {
		t.Run(l.name, func(t *testing.T) {
			checkLeaks(t)
			f := newFake()
			s := testServer(t, f)
			addChatter(s, f)
			seen := make(chan *mcp.ProgressNotificationParams, 20000)
			tr, _ := l.connect(t, s)
			c := dial(t, tr, l.version, &mcp.ClientOptions{
				ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { seen <- r.Params },
			})
			params := &mcp.CallToolParams{Name: "chatter", Arguments: map[string]any{"wait": true}}
			params.SetProgressToken("tok-1")
			done := make(chan error, 1)
			go func() {
				_, err := c.CallTool(t.Context(), params)
				done <- err
			}()
			var last float64
			for n := range 2 {
				p := <-seen
				if p.ProgressToken != "tok-1" || (n > 0 && p.Progress <= last) || !strings.HasPrefix(p.Message, "command: step ") {
					t.Errorf("progress %s after %v", toJSON(p), last)
				}
				last = p.Progress
				if strings.HasPrefix(p.Message, "command: step 9999") {
					break
				}
			}
			close(f.gate)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A client that stops reading never blocks the worker.
func TestClientThatStopsReading(t *testing.T) {
	checkLeaks(t)
	f := newFake()
	s := testServer(t, f)
	addChatter(s, f)
	in, clientOut := io.Pipe()
	clientIn, out := io.Pipe() // nobody reads it after the handshake
	served := make(chan error, 1)
	go func() { served <- s.ServeStdio(s.root, in, out) }()
	fmt.Fprintln(clientOut, initialize)
	if _, err := clientIn.Read(make([]byte, 1<<16)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(clientOut, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	for id := range 3 {
		fmt.Fprintf(clientOut, `{"jsonrpc":"2.0","id":"c%d","method":"tools/call","params":{"name":"chatter","_meta":{"progressToken":%d}}}`+"\n", id, id)
	}
	for range 3 {
		<-f.ended // every worker came through all its reports
	}
	s.cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	clientIn.Close()
}

// hostile lines do not end a session with a real process, and nothing but the
// protocol is on its standard output.
func TestProcess(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), serveEnv+"=1", "MCP_ENABLE_HTTP=0", "SANDBOXFORGE_HOME="+t.TempDir())
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		initialize, "rubbish", `{"jsonrpc":"2.0"}`, `[1,2,3]`, strings.Repeat("x", 5<<20), "\x00",
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":"run","method":"tools/call","params":{"name":"run_command","arguments":{"instance_id":"` + inst + `","command":"echo survived"}}}`,
	} {
		if _, err := io.WriteString(stdin, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	stdin.Close() // like a shell pipe: without waiting for the answers
	raw, err := io.ReadAll(stdout)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	answers := map[string]int{}
	for _, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		var m struct {
			ID     any             `json:"id"`
			Result json.RawMessage `json:"result"`
			Error  *jsonrpc.Error  `json:"error"`
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("standard output has %q", line)
		}
		switch {
		case m.Error != nil:
			answers[fmt.Sprint(m.Error.Code)]++
		case m.ID == "run" && strings.Contains(string(m.Result), "survived"):
			answers["run"]++
		}
	}
	if fmt.Sprint(answers) != "map[-32600:3 -32700:2 run:1]" {
		t.Errorf("answers %v in %s", answers, raw)
	}
}
