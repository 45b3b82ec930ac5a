package mcpserver

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// serveEnv makes the test binary a server with the fake service, so that
// tests can spawn one as a client does.
const serveEnv = "MCPSERVER_TEST_SERVE"

func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) != "" {
		os.Exit(serveFake())
	}
	os.Exit(m.Run())
}

func serveFake() int {
	settings, err := config.LoadSettings(os.Getenv, runtime.GOOS)
	if err == nil {
		err = settings.ResolveHTTP()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	stdio, err := TakeStdio()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := NewLogger(os.Stderr, slog.LevelDebug, "text")
	// What a careless library does.
	fmt.Println("this line must not reach the protocol")
	f := newFake()
	s := New(Options{Service: f, Logger: log})
	if os.Getenv(serveEnv) == "chatter" {
		addChatter(s, f)
	}
	if err := s.Serve(ctx, ConfigFrom(settings), stdio); err != nil {
		log.Error("cannot serve", "error", err)
		return 1
	}
	return 0
}

// fake is a service whose run_command does what the command line says:
//
//	echo X       X on stdout
//	block        waits until the context ends; its instance reports "blocked"
//	wait         waits until the test calls release
//	panic        panics
//	nil          returns nothing at all
//	flood        stdout and stderr of 200,000 bytes each
type fake struct {
	Service // the other methods are not called

	ended   chan string // the cause of every blocked call's end
	started chan string
	gate    chan struct{}
}

func newFake() *fake {
	return &fake{ended: make(chan string, 100), started: make(chan string, 100), gate: make(chan struct{})}
}

func (f *fake) RunCommand(ctx context.Context, r sandbox.RunCommandRequest) (*sandbox.RunCommandResult, error) {
	res := &sandbox.RunCommandResult{InstanceID: r.InstanceID, CommandResult: sandbox.CommandResult{Command: r.Command, TaskID: "task_000000000001"}}
	if r.InstanceID == "inst_00000000" {
		return nil, fault.New(fault.InstanceNotFound, "no instance %q", r.InstanceID).With("instance_id", r.InstanceID)
	}
	switch word, rest, _ := strings.Cut(r.Command, " "); word {
	case "echo":
		res.Stdout = rest + "\n"
		res.StdoutBytes = int64(len(res.Stdout))
	case "block":
		f.started <- r.Command
		<-ctx.Done()
		f.ended <- fmt.Sprint(context.Cause(ctx))
		return nil, fmt.Errorf("running: %w", ctx.Err())
	case "wait":
		f.started <- r.Command
		select {
		case <-f.gate:
		case <-ctx.Done():
			f.ended <- fmt.Sprint(context.Cause(ctx))
			return nil, ctx.Err()
		}
	case "panic":
		panic("a defect")
	case "nil":
		return nil, nil
	case "flood":
		res.Stdout, res.Stderr = strings.Repeat("line of output\n", 200000/15), strings.Repeat("0f3c", 50000)
		res.StdoutBytes, res.StderrBytes = int64(len(res.Stdout)), int64(len(res.Stderr))
	case "invalid":
		return nil, fault.New(fault.Internal, "as asked")
	}
	return res, nil
}

// addChatter adds a tool that reports ten thousand steps of progress, as a
// service does through its context, and says on ended that it was not held up.
func addChatter(s *Server, f *fake) {
	s.mcp.AddTool(&mcp.Tool{Name: "chatter", InputSchema: map[string]any{"type": "object"}}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		p := s.startProgress(ctx, req, "Chatter")
		const n = 10000
		for i := range n {
			p.update(sandbox.Progress{Stage: "command", Message: fmt.Sprintf("step %d", i), Done: float64(i), Total: n})
		}
		f.ended <- "done"
		if string(req.Params.Arguments) == `{"wait":true}` {
			select {
			case <-f.gate:
			case <-ctx.Done():
			}
		}
		p.finish(ctx)
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "said it all"}}}, nil
	})
}

func (f *fake) ListInstances(context.Context, sandbox.ListInstancesRequest) (*sandbox.ListInstancesResult, error) {
	return &sandbox.ListInstancesResult{Backend: "fake"}, nil // a nil list: the result must say []
}

func (f *fake) GetTaskStatus(_ context.Context, r sandbox.GetTaskStatusRequest) (*sandbox.Task, error) {
	return &sandbox.Task{TaskID: r.TaskID, Status: "running"}, nil
}
