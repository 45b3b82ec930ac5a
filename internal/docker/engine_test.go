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
	"time"
	"unicode/utf8"
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

// TestAnswersThatCostTheHost: a few bytes of the guest's must not become a
// hundred times that here.
func TestAnswersThatCostTheHost(t *testing.T) {
	many := func(one string) string { return one + strings.Repeat(","+one, maxElements+1) }
	for name, c := range map[string]struct {
		answer string
		ask    func(*Engine) error
	}{
		"tags":     {`[{"Id":"x","RepoTags":[` + many(`""`) + `]}]`, func(e *Engine) error { _, err := e.Images(t.Context()); return err }},
		"ports":    {`[{"Id":"x","Ports":[` + many(`{}`) + `]}]`, func(e *Engine) error { _, err := e.Containers(t.Context(), true); return err }},
		"env":      {`{"Id":"x","Config":{"Env":[` + many(`""`) + `]}}`, func(e *Engine) error { _, err := e.Container(t.Context(), "x"); return err }},
		"networks": {`{"Id":"x","IPAM":{"Config":[` + many(`{}`) + `]}}`, func(e *Engine) error { _, err := e.Network(t.Context(), "x"); return err }},
	} {
		e := engineAt(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(c.answer)) }))
		if err := c.ask(e); err == nil || !strings.Contains(err.Error(), "elements") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestAnEngineThatKeepsQuiet: it takes the call, and answers nothing or for ever;
// whoever asked is told, as somebody who has not left.
func TestAnEngineThatKeepsQuiet(t *testing.T) {
	oldRead, oldChange := readWithin, changeWithin
	readWithin, changeWithin = 50*time.Millisecond, 50*time.Millisecond
	t.Cleanup(func() { readWithin, changeWithin = oldRead, oldChange })
	for name, h := range map[string]http.HandlerFunc{
		"nothing": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"slow bytes": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte("["))
				w.(http.Flusher).Flush()
				time.Sleep(time.Millisecond)
			}
		},
	} {
		e := engineAt(t, h)
		_, err := e.Containers(t.Context(), true)
		_, perr := e.Prune(t.Context(), PruneSafe)
		for _, err := range []error{err, perr, e.StartContainer(t.Context(), "x")} {
			if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no whole answer") {
				t.Errorf("%s: %v", name, err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := e.Ping(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, cancelled: %v", name, err)
		}
	}
}

func TestRefusalsAreFitToBeShown(t *testing.T) {
	long := "\x1b]0;title\x07" + strings.Repeat("é", maxMessage)
	e := engineAt(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/images/create" {
			_ = json.NewEncoder(w).Encode(map[string]string{"status": long})
			_ = json.NewEncoder(w).Encode(map[string]string{"error": long})
			return
		}
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(map[string]string{"message": long})
	}))
	texts := []string{e.StartContainer(t.Context(), "x").Error()}
	err := e.PullImage(t.Context(), "x", func(s string) { texts = append(texts, s) })
	for _, s := range append(texts, err.Error()) {
		if len(s) > maxMessage+100 || strings.ContainsAny(s, "\x1b\x07") || !utf8.ValidString(s) {
			t.Errorf("%d bytes: %.60q", len(s), s)
		}
	}
	if len(texts) != 2 {
		t.Errorf("%d texts", len(texts))
	}
}
