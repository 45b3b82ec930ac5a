package docker

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// engineAt serves h as if it were the engine of a guest.
func engineAt(t *testing.T, h http.Handler) *Engine {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	e := NewEngine(func(ctx context.Context, network, address string) (net.Conn, error) {
		if network != "unix" || address != Socket {
			t.Errorf("dialled %s %s", network, address)
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", srv.Listener.Addr().String())
	})
	t.Cleanup(e.Close)
	return e
}

func TestEnsureNetworkMakesItOnce(t *testing.T) {
	made := map[string]bool{}
	e := engineAt(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			var b struct{ Name string }
			if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
				t.Error(err)
			}
			made[b.Name] = true
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte(`{"Id":"1"}`))
			return
		}
		if name := strings.TrimPrefix(r.URL.Path, "/networks/"); !made[name] {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"message":"no such network"}`))
			return
		}
		_, _ = w.Write([]byte(`{"Id":"1","Name":"n"}`))
	}))
	for i, want := range []bool{true, false} {
		created, err := e.EnsureNetwork(t.Context(), "lima-net-1")
		if err != nil || created != want {
			t.Errorf("call %d: created %v, %v", i, created, err)
		}
	}
}

func TestAnswersOfAnUnkindEngine(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"an error without JSON": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) },
		"nonsense":              func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"the wrong type":        func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`[1]`)) },
		"a hang-up": func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				c.Close()
			}
		},
	} {
		if created, err := engineAt(t, h).EnsureNetwork(t.Context(), "n"); err == nil || created || errors.Is(err, ErrNotFound) {
			t.Errorf("%s: created %v, error %v", name, created, err)
		}
	}
}
