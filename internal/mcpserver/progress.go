package mcpserver

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxforge/internal/sandbox"
)

// progress sends a call's newest step to its client, at most a few times a
// second, from a goroutine of its own: a client that stops reading blocks that
// goroutine and never the worker. While the worker says nothing, a sign of
// life goes out all the same, because clients give up silent calls.
type progress struct {
	mu    sync.Mutex
	last  sandbox.Progress
	dirty bool
	base  float64 // of the stages before this one
	stage string

	wake chan struct{}
	stop chan struct{}
	done chan struct{}
}

// startProgress returns a progress that does nothing if the client asked for
// none.
func (s *Server) startProgress(ctx context.Context, req *mcp.CallToolRequest, title string) *progress {
	token := req.Params.GetProgressToken()
	if token == nil {
		return &progress{}
	}
	p := &progress{wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	send := func(n mcp.ProgressNotificationParams) {
		n.ProgressToken = token
		// The error says that the client is gone, which ends ctx as well.
		_ = req.Session.NotifyProgress(ctx, &n)
	}
	go p.run(s.opts.progressEvery, s.opts.heartbeat, title, send)
	return p
}

// update takes a step; it never blocks.
func (p *progress) update(step sandbox.Progress) {
	if p.wake == nil {
		return
	}
	p.mu.Lock()
	if step.Stage != p.stage {
		p.base += p.last.Done
		p.stage = step.Stage
	}
	p.last, p.dirty = step, true
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// finish ends the sender and waits for it, so that nothing follows the
// result. If ctx ends first the client is gone, and the sender ends with its
// connection.
func (p *progress) finish(ctx context.Context) {
	if p.wake == nil {
		return
	}
	close(p.stop)
	select {
	case <-p.done:
	case <-ctx.Done():
	}
}

func (p *progress) run(every, heartbeat time.Duration, title string, send func(mcp.ProgressNotificationParams)) {
	defer close(p.done)
	started := time.Now()
	var sent float64
	pace := time.NewTicker(every)
	defer pace.Stop()
	alive := time.NewTimer(min(heartbeat, time.Second))
	defer alive.Stop()
	emit := func(idle bool) {
		p.mu.Lock()
		step, base, fresh := p.last, p.base, p.dirty
		p.dirty = false
		p.mu.Unlock()
		if !fresh && !idle {
			return // it went out with the one before
		}
		n := mcp.ProgressNotificationParams{Message: message(step)}
		if !fresh {
			n.Message = fmt.Sprintf("%s (%.0f s)", orElse(n.Message, title), time.Since(started).Seconds())
		}
		// The protocol wants a number that grows with every notification,
		// across stages that count different things.
		n.Progress = base + step.Done
		if step.Total > 0 {
			n.Total = base + step.Total
		}
		if n.Progress <= sent {
			n.Progress = sent + 0.001
		}
		sent = n.Progress
		if n.Total > 0 && n.Total < n.Progress {
			n.Total = 0
		}
		send(n)
		alive.Reset(heartbeat)
	}
	for {
		select {
		case <-p.stop:
			return
		case <-alive.C:
			emit(true)
			continue
		case <-p.wake:
		}
		emit(false)
		// The pace: what comes meanwhile is coalesced into one.
		pace.Reset(every)
		select {
		case <-p.stop:
			return
		case <-pace.C:
		}
	}
}

func message(p sandbox.Progress) string {
	if p.Stage == "" || p.Message == "" {
		return p.Stage + p.Message
	}
	return p.Stage + ": " + p.Message
}

func orElse(s, other string) string {
	if s != "" {
		return s
	}
	return other
}
