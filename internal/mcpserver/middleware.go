package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxforge/internal/fault"
)

// errShutdown is why a call's context ends when the server does.
var errShutdown = errors.New("the server is shutting down")

// errSessionEnded is why a call's context ends when its client ends the
// session.
var errSessionEnded = errors.New("the client ended its session")

// calls knows the calls in flight of each HTTP session, so that ending a
// session ends them; the SDK would wait for them instead.
type calls struct {
	mu      sync.Mutex
	cancels map[string]map[*context.CancelCauseFunc]struct{}
}

// add registers a call; the returned func takes it out.
func (c *calls) add(session string, cancel context.CancelCauseFunc) (remove func()) {
	if session == "" {
		return func() {}
	}
	key := &cancel
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancels == nil {
		c.cancels = map[string]map[*context.CancelCauseFunc]struct{}{}
	}
	if c.cancels[session] == nil {
		c.cancels[session] = map[*context.CancelCauseFunc]struct{}{}
	}
	c.cancels[session][key] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.cancels[session], key)
		if len(c.cancels[session]) == 0 {
			delete(c.cancels, session)
		}
	}
}

// end cancels the session's calls.
func (c *calls) end(session string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cancel := range c.cancels[session] {
		(*cancel)(errSessionEnded)
	}
}

// middleware is what every received message goes through, outermost: its
// context ends with the server and with its session, and a panic in a handler
// becomes an error of that one call instead of the end of the process.
func (s *Server) middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(s.root, func() { cancel(errShutdown) })()
		session := ""
		if ss, ok := req.GetSession().(*mcp.ServerSession); ok && ss != nil {
			session = ss.ID()
		}
		defer s.calls.add(session, cancel)()
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			s.log.ErrorContext(ctx, "panic in a handler", "method", method, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			if method == "tools/call" {
				res, err = failure(fault.New(fault.Internal, "the tool crashed: %v", p).
					Because("a defect in the server; its log has the details").
					Next("look at the state with list_instances before repeating the call")), nil
				return
			}
			res, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
		}()
		return next(ctx, method, req)
	}
}
