package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/host"
)

// idleEnd is how long HTTP stays up, without a request, after the stdio client
// that started this process has left.
const idleEnd = 10 * time.Minute

// Serve serves what cfg enables until ctx ends, until HTTP alone is left and
// idle, or until nothing is left. Then every call is cancelled and every
// session closed; nil is the normal end. Serve is called once.
func (s *Server) Serve(ctx context.Context, cfg Config, stdio Stdio) error {
	onStdio := cfg.Stdio == StdioOn || cfg.Stdio == StdioAuto && stdio.Kind == StdinPipe
	if where := container(); where != "" {
		s.log.Warn("this server seems to run inside a container, which is not supported: VMs need the host's hypervisor, file paths mean the container's, and a container's end ends the VMs; run it on the host", "evidence", where)
	}
	if err := cfg.check(); err != nil {
		return err
	}
	used := newActivity(s.opts.clock)
	web, err := s.listen(ctx, cfg, used)
	switch {
	case err != nil && !onStdio:
		return err
	case err != nil:
		s.log.Warn("no HTTP; stdio goes on without it", "reason", err.Error(), "next_steps", strings.Join(fault.From(err).NextSteps, "; "))
	case web == nil && !onStdio:
		return fault.New(fault.InvalidArgument, "nothing to serve: MCP_ENABLE_HTTP is off, and so is stdio").
			Because("standard input is %s", stdio.Kind).
			Next("have an MCP client start the server, or set MCP_ENABLE_HTTP to 1")
	case web != nil:
		s.log.Info("listening", "url", web.url, "stdio", onStdio)
		if !onStdio && cfg.Stdio == StdioAuto {
			s.log.Info("not serving stdio: standard input is " + string(stdio.Kind) + "; point an MCP client (transport streamable-http) at " + web.url)
		}
	}

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	left := make(chan error, 1) // the stdio client
	if onStdio {
		go func() { left <- s.ServeStdio(s.root, stdio.In, stdio.Out) }()
	}
	down := make(chan error, 1) // the HTTP server
	if web != nil {
		go func() { down <- web.serve() }()
	}
	idle := make(chan error, 1)

	var result error
	for alive := true; alive; {
		select {
		case <-ctx.Done():
			alive = false
		case err := <-left:
			onStdio = false
			if err != nil {
				s.log.Warn("the stdio session ended", "error", err)
			}
			if web == nil {
				alive, result = false, err
				break
			}
			s.log.Info("the stdio client has left; HTTP goes on while it is in use", "ends_when_idle_for", idleEnd.String())
			go func() { idle <- used.waitIdle(ctx, idleEnd) }()
		case err := <-down:
			web = nil
			s.log.Error("the HTTP server ended", "error", err)
			if !onStdio {
				alive, result = false, err
			}
		case err := <-idle:
			if err == nil {
				s.log.Info("no request for some time and no stdio client: ending", "idle_for", idleEnd.String())
			}
			alive = false
		}
	}
	s.shutdown(web, down)
	if onStdio {
		select {
		case <-left:
		case <-time.After(s.opts.stopGrace):
			s.log.Warn("the stdio session did not end in time")
		}
	}
	return result
}

// shutdown ends everything: the calls by the root context, then the sessions,
// without which http.Server.Shutdown would wait for their open streams.
func (s *Server) shutdown(web *webServer, down <-chan error) {
	s.cancel()
	ctx, stop := context.WithTimeout(context.Background(), s.opts.stopGrace)
	defer stop()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for session := range s.mcp.Sessions() {
			_ = session.Close() // its calls end with the root context
		}
	}()
	if web != nil {
		if err := web.srv.Shutdown(ctx); err != nil {
			s.log.Warn("connections had to be cut", "error", err)
			_ = web.srv.Close()
		}
		<-down
	}
	select {
	case <-closed:
	case <-ctx.Done():
		s.log.Warn("a session did not end in time")
	}
}

// portTaken is the fault of a port that a program (pid 0 if unknown) listens on.
func portTaken(port int, program string, pid int) error {
	if pid == 0 {
		return fault.New(fault.InvalidArgument, "port %d is taken", port).
			Because("another program listens there").
			Next("stop what holds it, or set MCP_HTTP_PORT to another port")
	}
	if strings.HasPrefix(program, "sandboxforge") {
		return fault.New(fault.InvalidArgument, "port %d is taken by another SandboxForge server (pid %d)", port, pid).
			Because("another server listens there; all servers see the same instances").
			Next("point the client at it, end it, or set MCP_HTTP_PORT")
	}
	return fault.New(fault.InvalidArgument, "port %d is taken by %s (pid %d)", port, program, pid).
		Because("another program listens there").
		Next("stop what holds it, or set MCP_HTTP_PORT to another port")
}

func taken(port int) error {
	program, pid := host.PortHolder(port)
	return portTaken(port, program, pid)
}

// webServer is a bound listener and what serves it.
type webServer struct {
	ln  net.Listener
	srv *http.Server
	url string
}

// listen binds the address; nil without an error if HTTP is off.
func (s *Server) listen(ctx context.Context, cfg Config, used *activity) (*webServer, error) {
	if !cfg.HTTP {
		return nil, nil
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", cfg.address())
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) || isAddrInUse(err) {
			return nil, taken(cfg.Port)
		}
		return nil, fmt.Errorf("cannot listen on MCP_HTTP_HOST=%q, MCP_HTTP_PORT=%d: %w", cfg.Host, cfg.Port, err)
	}
	return &webServer{
		ln:  refuse(ln, s.opts.RefusePeer),
		url: "http://" + ln.Addr().String() + endpoint,
		srv: &http.Server{
			Handler:           s.Handler(HTTPOptions{Loopback: cfg.loopback(), Token: cfg.Token}, used),
			ReadHeaderTimeout: 10 * time.Second,
			IdleTimeout:       2 * time.Minute,
			MaxHeaderBytes:    64 << 10,
			ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		},
	}, nil
}

func (w *webServer) serve() error {
	err := w.srv.Serve(w.ln)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
