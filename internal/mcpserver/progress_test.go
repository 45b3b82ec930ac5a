package mcpserver

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxforge/internal/sandbox"
)

func startRun(every, heartbeat time.Duration, send func(mcp.ProgressNotificationParams)) *progress {
	p := &progress{wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go p.run(every, heartbeat, "Run a command", send)
	return p
}

// A send that never returns holds up neither the worker nor its end.
func TestProgressThatIsNotTaken(t *testing.T) {
	checkLeaks(t)
	release := make(chan struct{})
	entered := make(chan struct{}, 1)
	p := startRun(time.Nanosecond, time.Hour, func(mcp.ProgressNotificationParams) {
		entered <- struct{}{}
		<-release
	})
	p.update(sandbox.Progress{Message: "first"})
	<-entered
	for range 100000 {
		p.update(sandbox.Progress{Message: "more"})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the client is gone
	p.finish(ctx)
	close(release)
	<-p.done
}

// Of many steps the newest is sent, and the number grows across stages that
// count different things.
func TestProgressIsCoalescedAndGrows(t *testing.T) {
	checkLeaks(t)
	sent := make(chan mcp.ProgressNotificationParams)
	p := startRun(time.Nanosecond, time.Hour, func(n mcp.ProgressNotificationParams) { sent <- n })
	last := -1.0
	for _, step := range []sandbox.Progress{
		{Stage: "boot", Message: "a", Done: 1, Total: 10},
		{Stage: "boot", Message: "b", Done: 10, Total: 10},
		{Stage: "sync", Message: "c", Done: 5, Total: 1000},
		{Stage: "sync", Message: "d", Done: 5, Total: 1000},
		{Stage: "sync", Message: "e", Done: 2, Total: 1000},
		{Stage: "docker", Message: "f"},
		{Stage: "docker", Message: "g"},
	} {
		p.update(step)
		n := <-sent
		if n.Progress <= last || n.Message != step.Stage+": "+step.Message || (n.Total != 0 && n.Total < n.Progress) {
			t.Errorf("%+v was sent as %s after %v", step, toJSON(n), last)
		}
		last = n.Progress
	}
	p.update(sandbox.Progress{Message: "one"})
	first := <-sent
	for _, m := range []string{"two", "three", "four"} {
		p.update(sandbox.Progress{Message: m})
	}
	// The sender may have been between two sends: the newest comes at the
	// latest with the second.
	second := <-sent
	if first.Message != "one" || (second.Message != "four" && (<-sent).Message != "four") {
		t.Errorf("first %q, second %q", first.Message, second.Message)
	}
	select {
	case n := <-sent:
		t.Errorf("nothing was new, and still %s", toJSON(n))
	default:
	}
	p.finish(t.Context())
}

// A worker that says nothing still shows signs of life.
func TestProgressHeartbeat(t *testing.T) {
	checkLeaks(t)
	sent := make(chan mcp.ProgressNotificationParams)
	p := startRun(time.Nanosecond, time.Millisecond, func(n mcp.ProgressNotificationParams) { sent <- n })
	a, b := <-sent, <-sent
	if !strings.HasPrefix(a.Message, "Run a command (") || b.Progress <= a.Progress {
		t.Errorf("%s, %s", toJSON(a), toJSON(b))
	}
	go func() {
		for range sent {
		}
	}()
	p.finish(t.Context())
	close(sent)
}

func TestNoProgressWithoutToken(t *testing.T) {
	s := &Server{}
	p := s.startProgress(t.Context(), &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{}}, "x")
	p.update(sandbox.Progress{Message: "x"})
	p.finish(t.Context())
}
