package mcpserver

import (
	"context"
	"errors"
	"io"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Stdio is the server's own pair of protocol files.
type Stdio struct {
	In  io.ReadCloser
	Out io.Writer
	// Kind says what standard input is: pipe, terminal, null or closed.
	Kind StdinKind
}

// StdinKind is what standard input turned out to be.
type StdinKind string

// The kinds that decide whether MCP_ENABLE_STDIO=auto serves stdio.
const (
	StdinPipe     StdinKind = "pipe"
	StdinTerminal StdinKind = "a terminal"
	StdinNull     StdinKind = "closed or the null device"
)

// ServeStdio serves one client until it closes its end or ctx ends; neither is
// an error. Calls that are still running then are cancelled and waited for.
func (s *Server) ServeStdio(ctx context.Context, in io.ReadCloser, out io.Writer) error {
	g := newGuard(in, newLineWriter(out))
	defer g.Close()
	// The line is bounded by the guard; the SDK's own bound would end the
	// session.
	session, err := s.mcp.Connect(ctx, &mcp.IOTransport{Reader: g, Writer: g, MaxLineLength: -1}, nil)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		// Unblock a writer whose client does not read, then let the session
		// wait for its calls, which end with the root context.
		g.Close()
	})()
	err = session.Wait()
	switch {
	case err == nil, ctx.Err() != nil, errors.Is(err, io.EOF), errors.Is(err, context.Canceled), errors.Is(err, errClosed):
		return nil
	default:
		return err
	}
}
