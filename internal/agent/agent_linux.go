package agent

//lint:file-ignore SA1019 x/net's HTTP/2 is frozen, not gone; the way to one given connection that net/http offers since Go 1.26 is yet to be measured here.

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/net/http2"

	"sandboxforge/internal/guest/guestv1/guestv1connect"
)

// ProtocolVersion is what Info reports; the host refuses agents it can't speak to.
const ProtocolVersion = 1

// Limits of a request. A message of the stream protocols is far smaller.
const (
	maxRequest = 64 << 20
	maxStdin   = 16 << 20
	// maxRunning bounds processes that run at once, maxKnown those that are
	// remembered: the oldest ended ones are forgotten beyond that.
	maxRunning = 512
	maxKnown   = 2048
)

// Config says where an Agent lives. The zero value of a field is the guest's
// own place for it; tests set all of them.
type Config struct {
	Version  string // of the build
	RunDir   string // /run/sandboxforge/proc: control sockets
	SpoolDir string // /var/lib/sandboxforge/spool
	// Cgroup is the directory below which each process gets a cgroup. "auto":
	// a directory of the agent's own in the cgroup v2 hierarchy, if there is
	// one. Empty: no cgroups.
	Cgroup string
	// Shim is the command that becomes a shim.
	Shim []string
	// IdleShims are started ahead of need.
	IdleShims int
	// User is whose commands run unless a request names another one. Where it
	// does not exist the agent's own user is taken.
	User string
	// Etc holds passwd, group, profile and the like: /etc.
	Etc string
	Log *slog.Logger
	// PowerOff ends the guest; tests replace it.
	PowerOff func(reboot bool)
}

// Agent serves the guest protocol. Make one with New.
type Agent struct {
	cfg   Config
	log   *slog.Logger
	procs *registry
	users *users
	sys   *system

	handler http.Handler
	h2      *http2.Server
	warm    sync.Once
	wg      sync.WaitGroup
	stop    context.CancelFunc
	ctx     context.Context
}

// New makes an agent and adopts the processes that an earlier one left.
func New(cfg Config) (*Agent, error) {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&cfg.RunDir, "/run/sandboxforge/proc")
	def(&cfg.SpoolDir, "/var/lib/sandboxforge/spool")
	def(&cfg.Etc, "/etc")
	def(&cfg.User, "sandbox")
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if len(cfg.Shim) == 0 {
		return nil, errors.New("agent: no command for shims")
	}
	if err := os.MkdirAll(cfg.RunDir, 0o700); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.SpoolDir, 0o711); err != nil {
		return nil, err
	}
	if cfg.Cgroup == "auto" {
		cfg.Cgroup = findCgroup()
	}
	if cfg.Cgroup != "" {
		if err := os.MkdirAll(cfg.Cgroup, 0o755); err != nil {
			cfg.Log.Warn("no cgroups: processes are killed by session and descent", "error", err)
			cfg.Cgroup = ""
		}
	}
	a := &Agent{cfg: cfg, log: cfg.Log}
	a.ctx, a.stop = context.WithCancel(context.Background())
	a.users = &users{etc: cfg.Etc, def: cfg.User}
	a.sys = newSystem(cfg)
	a.procs = newRegistry(a)
	if err := a.procs.adopt(); err != nil {
		a.stop()
		return nil, err
	}

	opts := []connect.HandlerOption{
		connect.WithReadMaxBytes(maxRequest),
		// The link is faster than a compressor, above all under emulation.
		connect.WithCompression("gzip", nil, nil),
		connect.WithRecover(func(_ context.Context, spec connect.Spec, _ http.Header, p any) error {
			a.log.Error("panic in a handler", "procedure", spec.Procedure, "panic", p, "stack", string(debug.Stack()))
			return connect.NewError(connect.CodeInternal, errors.New("the agent's handler panicked; see its log in the guest"))
		}),
	}
	mux := http.NewServeMux()
	mux.Handle(guestv1connect.NewSystemHandler(systemService{a}, opts...))
	mux.Handle(guestv1connect.NewProcessesHandler(processService{a}, opts...))
	mux.Handle(guestv1connect.NewFilesHandler(fileService{a}, opts...))
	mux.Handle(guestv1connect.NewDialerHandler(dialService{a}, opts...))
	a.handler = mux
	a.h2 = &http2.Server{
		MaxConcurrentStreams:         1000,
		MaxReadFrameSize:             128 << 10,
		MaxUploadBufferPerConnection: 16 << 20,
		MaxUploadBufferPerStream:     4 << 20,
	}
	return a, nil
}

// Handler is the protocol itself, for tests.
func (a *Agent) Handler() http.Handler { return a.handler }

// Serve serves the connections of one listener until ctx ends or the listener
// does. It closes the listener and waits for the connections' handlers.
func (a *Agent) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer l.Close()
	srv := &http.Server{Handler: a.handler, ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelWarn)}
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		a.warm.Do(func() { a.wg.Go(a.prewarm) })
		wg.Go(func() {
			defer c.Close()
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			a.h2.ServeConn(c, &http2.ServeConnOpts{Context: ctx, BaseConfig: srv, Handler: a.handler})
		})
	}
}

// prewarm captures the default user's environment before the first command
// asks for it.
func (a *Agent) prewarm() {
	ctx, cancel := context.WithTimeout(a.ctx, time.Minute)
	defer cancel()
	if u, err := a.users.lookup(""); err == nil {
		a.users.environ(ctx, u)
	}
}

// Close ends the agent. Its processes go on.
func (a *Agent) Close() {
	a.stop()
	a.procs.close()
	a.sys.close()
	a.wg.Wait()
}

// findCgroup chooses a directory for the processes' cgroups: below the agent's
// own, which systemd delegates to it, or at the top where there is no systemd.
func findCgroup() string {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(mount, "cgroup.procs")); err != nil {
			continue
		}
		own := unifiedPath(string(b))
		if own == "" || own == "/" {
			return filepath.Join(mount, "sandboxforge")
		}
		return filepath.Join(mount, own, "proc")
	}
	return ""
}
