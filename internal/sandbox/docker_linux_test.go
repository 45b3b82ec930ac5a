package sandbox

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"sandboxforge/internal/docker"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/store"
)

// labEngine answers for the engine of a world's guest; the docker program there
// is a script.
type labEngine struct {
	mu      sync.Mutex
	answers map[string]any // by method and path
	asked   []string
	on      func(call string)
}

func (e *labEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	call := r.Method + " " + r.URL.Path
	e.mu.Lock()
	e.asked = append(e.asked, call)
	answer, ok := e.answers[call]
	e.mu.Unlock()
	if e.on != nil {
		e.on(call)
	}
	if !ok && r.Method == http.MethodGet && call != "GET /_ping" {
		w.WriteHeader(http.StatusNotFound)
		answer = map[string]string{"message": "no such object"}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (e *labEngine) count(call string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(e.asked), func(c string) bool { return c != call }))
}

// withDocker gives the world's guest an engine and a docker program.
func (w *world) withDocker(program string) *labEngine {
	w.t.Helper()
	e := &labEngine{answers: map[string]any{}}
	srv := httptest.NewServer(e)
	w.t.Cleanup(srv.Close)
	old := newEngine
	newEngine = func(*guest.Client) *docker.Engine {
		return docker.NewEngine(func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", srv.Listener.Addr().String())
		})
	}
	w.t.Cleanup(func() { newEngine = old })
	name := filepath.Join(w.lease.WorkspaceRoot, "docker")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+program+"\n"), 0o755); err != nil {
		w.t.Fatal(err)
	}
	w.s.settings.Backend = "qemu" // for diagnostics only: the world has no backends
	ready := true
	l, err := w.s.store.Update(w.t.Context(), w.lease.InstanceID, store.Patch{DockerCommand: &name, RuntimeReady: &ready, RemotePath: &w.lease.WorkspaceRoot})
	if err != nil {
		w.t.Fatal(err)
	}
	w.lease = l
	return e
}

// TestADockerThatReachesNoRegistry: the cause is what is wrong with the network,
// and the way to do without it, not what the program happens to print last.
func TestADockerThatReachesNoRegistry(t *testing.T) {
	w := newWorld(t)
	w.withDocker(`cat >&2 <<'END'
Unable to find image 'app:1' locally
docker: Error response from daemon: Get "https://registry.example/v2/": dial tcp: lookup registry.example on 192.0.2.1:53: no such host.
See 'docker run --help'.
END
exit 125`).answers["GET /containers/json"] = []any{}
	_, err := w.s.DockerRun(w.context(), DockerRunRequest{InstanceID: w.lease.InstanceID, Image: "app:1"})
	wantCode(t, err, fault.DockerCommandFailed)
	f := fault.From(err)
	if f.Cause != "the VM cannot reach the registry (lookup registry.example on 192.0.2.1:53: no such host), and it does not have app:1" {
		t.Error(f.Cause)
	}
	if len(f.NextSteps) < 2 || f.NextSteps[0] != "check with run_command: curl -sSI https://registry.example/v2/" || !strings.Contains(f.NextSteps[1], "--load app:1=ARCHIVE --as NAME") {
		t.Error(f.NextSteps)
	}
}

// TestARunThatFailsLateLeavesNothing: the docker program has done its part, and
// then the caller leaves, or the engine does not answer.
func TestARunThatFailsLateLeavesNothing(t *testing.T) {
	running := map[string]any{"Id": "c1", "Name": "/c1", "State": map[string]any{"Status": "exited", "StartedAt": "2026-01-02T03:04:05Z"}}
	list := []any{map[string]any{"Id": "c1"}}
	foreground := false
	for name, c := range map[string]struct {
		leave  string // the call at which the caller leaves
		detach *bool
		code   fault.Code
	}{
		"while it is looked for":   {"GET /containers/json", nil, fault.Cancelled},
		"while it is looked at":    {"GET /containers/c1/json", nil, fault.Cancelled},
		"while it is removed":      {"DELETE /containers/c1", &foreground, fault.Cancelled},
		"the engine talks rubbish": {"", nil, fault.DockerCommandFailed},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			e := w.withDocker("echo c1")
			e.answers["GET /containers/json"], e.answers["GET /containers/c1/json"] = list, running
			ctx, cancel := context.WithCancel(w.context())
			defer cancel()
			left := false
			e.on = func(call string) {
				if call == c.leave && !left {
					left = true
					cancel()
				}
			}
			if c.leave == "" {
				e.answers["GET /containers/c1/json"] = []int{1}
			}
			_, err := w.s.DockerRun(ctx, DockerRunRequest{InstanceID: w.lease.InstanceID, Image: "app:dev", Detach: c.detach})
			wantCode(t, err, c.code)
			want := 1
			if strings.HasPrefix(c.leave, "DELETE") {
				want = 2 // the one that was cancelled, and the one that counts
			}
			if n := e.count("DELETE /containers/c1"); n != want {
				t.Errorf("removed %d times, asked %v", n, e.asked)
			}
		})
	}
}
