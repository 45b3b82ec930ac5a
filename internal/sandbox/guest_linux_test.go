package sandbox

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sandboxforge/internal/agent"
	"sandboxforge/internal/agent/shim"
	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/link"
	"sandboxforge/internal/store"
	"sandboxforge/internal/supervisor"
	"sandboxforge/internal/supervisor/supervisorv1"
	"sandboxforge/internal/supervisor/supervisorv1/supervisorv1connect"
)

// The test binary is also the agent's shim.
func init() {
	if os.Getenv("SANDBOXFORGE_TEST_ROLE") == "shim" {
		os.Exit(shim.Main())
	}
}

// world is a service with one running instance, whose guest is an agent of
// this process behind a supervisor's socket.
type world struct {
	t     *testing.T
	s     *Service
	lease store.Lease
	guest *guest.Client // past the supervisor

	gate  atomic.Pointer[gate]
	ahead atomic.Int64 // nanoseconds by which the service's clock is ahead
}

// gate is asked for each call of the guest, by its name, on its way through the
// supervisor; true says that it was answered and goes no further.
type gate func(call string, w http.ResponseWriter, r *http.Request) bool

type hello struct {
	supervisorv1connect.UnimplementedSupervisorHandler
	name string
}

func (h hello) Hello(context.Context, *supervisorv1.HelloRequest) (*supervisorv1.HelloResponse, error) {
	return &supervisorv1.HelloResponse{ProtocolVersion: supervisor.ProtocolVersion, BuildVersion: "test", Pid: int64(os.Getpid()), Name: h.name}, nil
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sfw") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	settings, err := config.LoadSettings(func(k string) string {
		return map[string]string{"HOME": dir, "SANDBOXFORGE_HOME": filepath.Join(dir, "h")}[k]
	}, "linux")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t}
	s, err := Open(t.Context(), Options{Settings: settings, Clock: func() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	w.s = s
	l, err := s.store.Admit(t.Context(), store.NewLease{
		Backend: "fake", WorkspaceRoot: dir, WorkspaceID: "ws_0123456789ab", ExpiresAt: time.Now().Add(time.Hour),
		Config: []byte("{}"), Spec: []byte("{}"),
	}, store.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if w.lease, err = s.store.Move(t.Context(), l.InstanceID, l.Generation, store.Move{To: store.Running}); err != nil {
		t.Fatal(err)
	}
	w.serve(dir)
	return w
}

// serve starts the agent and the socket.
func (w *world) serve(dir string) {
	t := w.t
	etc := filepath.Join(dir, "etc")
	if err := os.Mkdir(etc, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"passwd", "group"} {
		b, err := os.ReadFile("/etc/" + f)
		if err == nil {
			err = os.WriteFile(filepath.Join(etc, f), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a, err := agent.New(agent.Config{
		Version: "test", RunDir: filepath.Join(dir, "run"), SpoolDir: filepath.Join(dir, "spool"), Etc: etc,
		Shim: []string{"/usr/bin/env", "SANDBOXFORGE_TEST_ROLE=shim", exe}, User: fmt.Sprint(os.Geteuid()),
		PowerOff: func(bool) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	lk := guest.NewLink(func(context.Context) (io.ReadWriteCloser, error) {
		host, port := net.Pipe()
		wg.Go(func() { a.Serve(ctx, link.NewListener(port)) })
		return host, nil
	}, nil)
	w.guest = guest.NewClient(lk)
	if err := lk.WaitConnected(t.Context()); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(supervisorv1connect.NewSupervisorHandler(hello{name: w.lease.BackendInstanceName}))
	proxy := guest.Proxy(lk, nil)
	mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) {
		if g := w.gate.Load(); g != nil && (*g)(path.Base(r.URL.Path), rw, r) {
			return
		}
		proxy.ServeHTTP(rw, r)
	})
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	sock, err := net.Listen("unix", filepath.Join(w.s.runDir, w.lease.BackendInstanceName+".sock"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: mux, Protocols: p}
	wg.Go(func() { srv.Serve(sock) })
	t.Cleanup(func() {
		end, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if list, err := w.guest.List(end); err == nil {
			for _, p := range list {
				w.guest.Signal(end, p.ID, guest.SIGKILL, true)
			}
			for _, p := range list {
				w.guest.Get(end, p.ID, 5*time.Second)
			}
		}
		srv.Close()
		lk.Close()
		stop()
		wg.Wait()
		a.Close()
	})
}

// through sets the gate; nil lets everything pass.
func (w *world) through(g gate) {
	if g == nil {
		w.gate.Store(nil)
		return
	}
	w.gate.Store(&g)
}

// hanging is a gate at which calls of these names are never answered.
func hanging(calls ...string) gate {
	return func(call string, _ http.ResponseWriter, r *http.Request) bool {
		if slices.Contains(calls, call) {
			<-r.Context().Done()
			return true
		}
		return false
	}
}

func (w *world) context() context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	w.t.Cleanup(cancel)
	return ctx
}

func (w *world) row(id string) store.Task {
	w.t.Helper()
	t, err := w.s.store.Task(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

func (w *world) run(r RunCommandRequest) (*RunCommandResult, error) {
	r.InstanceID = w.lease.InstanceID
	return w.s.RunCommand(w.context(), r)
}

func (w *world) start(command string) *StartBackgroundTaskResult {
	w.t.Helper()
	r, err := w.s.StartBackgroundTask(w.context(), StartBackgroundTaskRequest{InstanceID: w.lease.InstanceID, Command: command})
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// events are what was recorded of a task, by name.
func (w *world) events(task, what string) []store.Event {
	w.t.Helper()
	e, err := w.s.store.Events(w.t.Context(), store.EventFilter{TaskID: task, What: what})
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

func wantCode(t *testing.T, err error, code fault.Code) *fault.Error {
	t.Helper()
	if !fault.Is(err, code) {
		t.Fatalf("error %v (%s), want %s", err, fault.CodeOf(err), code)
	}
	return fault.From(err)
}

// shorten changes a bound for one test.
func shorten(t *testing.T, d *time.Duration, to time.Duration) {
	old := *d
	*d = to
	t.Cleanup(func() { *d = old })
}
