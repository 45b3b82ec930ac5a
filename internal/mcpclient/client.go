// Package mcpclient spawns a server and speaks MCP with it over stdio, as any
// client would. The demo and the bench are its users: what they show and
// measure goes through the same door as an agent's calls.
//
//	c, err := mcpclient.Connect(ctx, "sandboxforge-mcp-server", os.Environ(), version)
//	defer c.Close()
//	err = c.Call(ctx, "list_instances", map[string]any{}, &list, nil)
package mcpclient

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxforge/internal/fault"
)

// Client is one spawned server and the MCP session with it.
type Client struct {
	cmd     *exec.Cmd
	session *mcp.ClientSession
	log     *tail // the server's stderr

	mu       sync.Mutex
	next     int
	progress map[string]func(message string)
}

// Connect spawns the server and opens a session. The server is not in our
// process group: an interrupt from the terminal must not end it before the
// instance is destroyed. Its life ends with Close, not with ctx.
func Connect(ctx context.Context, server string, environ []string, version string) (*Client, error) {
	c := &Client{log: &tail{max: 32 << 10}, progress: map[string]func(string){}}
	cmd := exec.Command(server)
	c.cmd = cmd
	cmd.Env = environ
	cmd.Stderr = c.log
	cmd.WaitDelay = 5 * time.Second
	ownProcessGroup(cmd)
	m := mcp.NewClient(&mcp.Implementation{Name: "sandboxforge", Title: "SandboxForge", Version: version}, &mcp.ClientOptions{
		Capabilities:                &mcp.ClientCapabilities{},
		ProgressNotificationHandler: c.onProgress,
	})
	// The transport ties the connection to the context of Connect only while
	// it connects.
	session, err := m.Connect(ctx, &mcp.CommandTransport{Command: cmd, TerminateDuration: 15 * time.Second}, nil)
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "cannot start a session with %s", server).
			Because("the server did not come up: %s", c.log.last()).
			Next("run `%s` by hand and read what it says", server).
			Next("run `sandboxforge doctor`")
	}
	c.session = session
	return c, nil
}

// ConnectHTTP opens a session with a server that runs already and listens at a
// URL. Close ends the session, not the server.
func ConnectHTTP(ctx context.Context, url, version string) (*Client, error) {
	c := &Client{log: &tail{max: 1}, progress: map[string]func(string){}}
	m := mcp.NewClient(&mcp.Implementation{Name: "sandboxforge", Title: "SandboxForge", Version: version}, &mcp.ClientOptions{
		Capabilities:                &mcp.ClientCapabilities{},
		ProgressNotificationHandler: c.onProgress,
	})
	session, err := m.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: url}, nil)
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "cannot start a session with the server at %s", url)
	}
	c.session = session
	return c, nil
}

func (c *Client) onProgress(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
	// Under the lock: when a call has returned, nobody hears of it any more.
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.progress[fmt.Sprint(r.Params.ProgressToken)]; f != nil {
		f(r.Params.Message)
	}
}

// Call calls a tool and decodes its structured result into out (which may be
// nil). A tool error comes back as the fault it was. If ctx ends, the server
// is told to give the call up. progress (which may be nil) hears of one step at a
// time, and of none once Call has returned; it must not call the Client.
func (c *Client) Call(ctx context.Context, tool string, args, out any, progress func(message string)) error {
	params := &mcp.CallToolParams{Name: tool, Arguments: args}
	c.mu.Lock()
	c.next++
	token := "call-" + strconv.Itoa(c.next)
	c.progress[token] = progress
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.progress, token)
		c.mu.Unlock()
	}()
	params.SetProgressToken(token)
	res, err := c.session.CallTool(ctx, params)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fault.Wrap(err, fault.Internal, "the call of %s failed in transit", tool).
			Because("the server ended, or answered outside the protocol: %s", c.log.last()).
			Next("run `sandboxforge doctor`")
	}
	if res.IsError {
		return toolFault(tool, res)
	}
	if out == nil {
		return nil
	}
	text, err := json.Marshal(res.StructuredContent)
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		return fault.Wrap(err, fault.Internal, "the result of %s has not the promised shape", tool)
	}
	return nil
}

// toolFault turns a tool error back into a fault.
func toolFault(tool string, res *mcp.CallToolResult) error {
	text := ""
	for _, part := range res.Content {
		if t, ok := part.(*mcp.TextContent); ok {
			text = t.Text
			break
		}
	}
	var e struct {
		Code    fault.Code     `json:"error_code"`
		Message string         `json:"message"`
		Details map[string]any `json:"details"`
	}
	if json.Unmarshal([]byte(text), &e) != nil || e.Code == "" {
		return fault.New(fault.Internal, "%s failed: %s", tool, text)
	}
	f := fault.New(e.Code, "%s: %s", tool, e.Message)
	if cause, ok := e.Details["probable_cause"].(string); ok {
		f.Cause = cause
	}
	if steps, ok := e.Details["next_steps"].([]any); ok {
		for _, s := range steps {
			if s, ok := s.(string); ok {
				f.NextSteps = append(f.NextSteps, s)
			}
		}
	}
	delete(e.Details, "probable_cause")
	delete(e.Details, "next_steps")
	f.Details = e.Details
	return f
}

// Close ends the session and the server, and waits for both.
func (c *Client) Close() error {
	if c == nil || c.session == nil {
		return nil
	}
	return c.session.Close()
}

// PID is the server's process id.
func (c *Client) PID() int { return c.cmd.Process.Pid }

// Describe is one line about the server: name, version, protocol and tools.
func (c *Client) Describe(ctx context.Context) (string, error) {
	r, err := c.session.ListTools(ctx, nil)
	if err != nil {
		return "", err
	}
	note := fmt.Sprintf("%d tools", len(r.Tools))
	if init := c.session.InitializeResult(); init != nil && init.ServerInfo != nil {
		note = fmt.Sprintf("%s %s, protocol %s, %s", init.ServerInfo.Name, init.ServerInfo.Version, init.ProtocolVersion, note)
	}
	return note, nil
}

// Log is the end of what the server wrote to stderr.
func (c *Client) Log() string { return c.log.String() }
