package mcpserver

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxforge/internal/version"
)

// Options make a Server.
type Options struct {
	// Service does what the tools ask for.
	Service Service
	// Logger is for the operator; never nil. It must not write to stdout.
	Logger *slog.Logger
	// Caller puts into a call's context who makes it, if the service wants to
	// know; nil for nobody.
	Caller func(context.Context, Caller) context.Context
	// Session is recorded as the owner of what a call creates.
	Session string
	// RefusePeer is asked once for each HTTP connection, before a byte of it is
	// read. Connections it gives a reason for are closed; nil refuses none. It
	// is called by one goroutine at a time and holds up other connections.
	RefusePeer func(net.Conn) (reason string)

	// For tests: how often progress may be sent, and how long a call may be
	// silent. Zero for the defaults.
	progressEvery, heartbeat time.Duration
	// stopGrace bounds the orderly shutdown.
	stopGrace time.Duration
	clock     Clock
}

// Caller is who makes a call.
type Caller struct {
	Session string // the operator's name for this server, MCP_SESSION_ID
	Client  string // what the client calls itself, name and version; may be empty
}

func (o *Options) caller(ctx context.Context, req *mcp.CallToolRequest) context.Context {
	if o.Caller == nil {
		return ctx
	}
	c := Caller{Session: o.Session}
	if info := req.ClientInfo(); info != nil {
		c.Client = info.Name
		if info.Version != "" {
			c.Client += " " + info.Version
		}
	}
	return o.Caller(ctx, c)
}

// Server serves one mcp.Server over stdio and HTTP. Make one with New.
type Server struct {
	opts  Options
	log   *slog.Logger
	mcp   *mcp.Server
	calls calls

	// root is the context that every call's context ends with.
	root   context.Context
	cancel context.CancelFunc
}

const instructions = `SandboxForge gives you disposable virtual machines. Nothing you run there touches the host; files move only through the copy, sync and artifact tools. Usual order: create_instance for the workspace (returns instance_id, Docker running and the workspace synced in), run_command or start_background_task, collect_artifacts or sync_instance_to_workspace, destroy_instance. Every instance has an expiry; extend_instance_ttl moves it. A failed call carries error_code, message and details with probable_cause and next_steps. create_instance, run_command, start_background_task, fork_instance, snapshot_instance and restore_instance take request_id: repeat such a call with the same one after a timeout. Before repeating docker_run, docker_exec or extend_instance_ttl, look with docker_ps or list_instances whether it was done.`

// New makes the server with the tools of the table.
func New(opts Options) *Server {
	m := mcp.NewServer(
		&mcp.Implementation{Name: "sandboxforge", Title: "SandboxForge", Version: version.String()},
		&mcp.ServerOptions{
			Instructions: instructions,
			Logger:       slog.New(quiet{opts.Logger.Handler()}),
			// The tools never change while the server runs. KeepAlive stays
			// unset: it ends HTTP sessions that hold no GET stream.
			Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
		})
	s := Wrap(m, opts)
	for _, t := range catalog() {
		s.register(t)
	}
	return s
}

// Wrap puts the transports and the middleware around an mcp.Server with tools
// of its own: the conformance fixtures run on what the real server runs on.
func Wrap(m *mcp.Server, opts Options) *Server {
	if opts.progressEvery == 0 {
		opts.progressEvery = 250 * time.Millisecond
	}
	if opts.heartbeat == 0 {
		opts.heartbeat = 5 * time.Second
	}
	if opts.stopGrace == 0 {
		opts.stopGrace = 5 * time.Second
	}
	if opts.clock == nil {
		opts.clock = systemClock{}
	}
	s := &Server{opts: opts, log: opts.Logger, mcp: m}
	s.root, s.cancel = context.WithCancel(context.Background())
	m.AddReceivingMiddleware(s.middleware)
	return s
}
