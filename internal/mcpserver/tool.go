package mcpserver

import (
	"context"
	"encoding/json"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// A hint set is what a client may assume of a tool before it calls it.
type hints struct {
	readOnly    bool
	destructive bool
	idempotent  bool
	openWorld   bool
}

// spec is the part of a tool's row that is data.
type spec struct {
	Name        string
	Title       string
	Description string
	hints       hints
	rules       rules
}

// tool is a row of the table, ready to be registered.
type tool struct {
	spec   spec
	mcp    *mcp.Tool
	output *jsonschema.Resolved
	result func() any // a new, empty result
	call   func(context.Context, Service, json.RawMessage) (out any, text string, err error)
}

// row makes a tool of a Service method. The schemas come from In and Out; text
// is the short account for people and for clients that show only text. It
// panics on a mistake in the row.
func row[In, Out any](s spec, method func(Service, context.Context, In) (*Out, error), text func(*Out) string) *tool {
	in, out := inputSchema[In](s.rules), outputSchema[Out]()
	resolved, err := out.Resolve(nil)
	if err != nil {
		panic(s.Name + ": " + err.Error())
	}
	valid := newValidator(in, s.rules)
	destructive, open := s.hints.destructive, s.hints.openWorld
	return &tool{
		spec: s,
		mcp: &mcp.Tool{
			Name:         s.Name,
			Title:        s.Title,
			Description:  s.Description + errorsReading,
			InputSchema:  in,
			OutputSchema: out,
			Annotations: &mcp.ToolAnnotations{
				Title:           s.Title,
				ReadOnlyHint:    s.hints.readOnly,
				DestructiveHint: &destructive,
				IdempotentHint:  s.hints.idempotent,
				OpenWorldHint:   &open,
			},
		},
		output: resolved,
		result: func() any { return new(Out) },
		call: func(ctx context.Context, svc Service, raw json.RawMessage) (any, string, error) {
			var req In
			if f := valid.decode(raw, &req); f != nil {
				return nil, "", f
			}
			res, err := method(svc, ctx, req)
			if err != nil {
				return nil, "", err
			}
			if res == nil {
				return nil, "", fault.New(fault.Internal, "%s returned neither a result nor an error", s.Name)
			}
			return res, text(res), nil
		},
	}
}

// register adds t to the server.
func (s *Server) register(t *tool) {
	s.mcp.AddTool(t.mcp, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		ctx = s.opts.caller(ctx, req)
		report := s.startProgress(ctx, req, t.spec.Title)
		out, text, err := t.call(sandbox.WithProgress(ctx, report.update), s.opts.Service, req.Params.Arguments)
		report.finish(ctx)
		if err != nil {
			f := fault.From(err)
			s.logFailure(ctx, t.spec.Name, f)
			return failure(f), nil
		}
		return t.success(out, text), nil
	})
}

// logFailure keeps in the server's log what only its operator can mend.
func (s *Server) logFailure(ctx context.Context, name string, f *fault.Error) {
	if f.Code == fault.Internal || f.Code == fault.BackendCommandFailed {
		s.log.ErrorContext(ctx, "tool failed", "tool", name, "error_code", string(f.Code), "error", f.Error())
		return
	}
	s.log.DebugContext(ctx, "tool failed", "tool", name, "error_code", string(f.Code), "error", f.Error())
}
