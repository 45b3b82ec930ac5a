package mcpserver

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const discover = `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

func testServer(t *testing.T, f *fake) *Server {
	t.Helper()
	return New(Options{Service: f, Logger: testLogger(t), progressEvery: 1, stopGrace: 20e9})
}

func testLogger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// serveHTTP serves s on a loopback port and shuts it down with the test.
func serveHTTP(t *testing.T, s *Server, o HTTPOptions) (url string) {
	t.Helper()
	ts := httptest.NewServer(s.Handler(o, nil))
	t.Cleanup(func() {
		s.cancel()
		for session := range s.mcp.Sessions() {
			session.Close()
		}
		ts.Close()
	})
	return ts.URL
}

type exchange struct {
	name    string
	method  string
	path    string
	body    string
	headers map[string]string
	host    string
	status  int
	says    string
}

func (e exchange) run(t *testing.T, url string) http.Header {
	t.Helper()
	path := e.path
	if path == "" {
		path = endpoint
	}
	req, err := http.NewRequestWithContext(t.Context(), e.method, url+path, strings.NewReader(e.body))
	if err != nil {
		t.Fatal(err)
	}
	if e.method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
	}
	for k, v := range e.headers {
		if req.Header.Del(k); v != "" {
			req.Header.Set(k, v)
		}
	}
	req.Host = e.host
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatalf("%s: %v", e.name, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s: %v", e.name, err)
	}
	if res.StatusCode != e.status || !strings.Contains(string(body), e.says) {
		t.Errorf("%s: %d %.300s, want %d and %q", e.name, res.StatusCode, body, e.status, e.says)
	}
	return res.Header
}

func TestHTTP(t *testing.T) {
	checkLeaks(t)
	url := serveHTTP(t, testServer(t, newFake()), HTTPOptions{Loopback: true})
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	post := func(body string) exchange { return exchange{method: "POST", body: body, status: 200} }
	modernly := map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "server/discover"}
	for _, e := range []exchange{
		{name: "root", method: "GET", path: "/", status: 404},
		{name: "below the endpoint", method: "GET", path: "/mcp/", status: 404},
		{name: "plain curl", method: "GET", headers: map[string]string{"Accept": "*/*"}, status: 406, says: "Not Acceptable"},
		{name: "browser", method: "GET", headers: map[string]string{"Accept": "text/html"}, status: 406},
		{name: "POST without Accept", method: "POST", body: initialize, headers: map[string]string{"Accept": ""}, status: 406},
		{name: "POST that wants JSON only", method: "POST", body: initialize, headers: map[string]string{"Accept": "application/json"}, status: 406},
		{name: "POST that takes anything", method: "POST", body: initialize, headers: map[string]string{"Accept": "*/*"}, status: 200},
		{name: "GET stream without session", method: "GET", headers: map[string]string{"Accept": "text/event-stream"}, status: 400},
		{name: "GET stream, modern", method: "GET", headers: map[string]string{"Accept": "text/event-stream", "Mcp-Protocol-Version": "2026-07-28"}, status: 405},
		{name: "unknown session", method: "POST", body: discover, headers: map[string]string{"Mcp-Session-Id": "nope"}, status: 404},
		{name: "PUT", method: "PUT", status: 405},
		{name: "no JSON", method: "POST", body: "hello", status: 400, says: "-32700"},
		{name: "wrong type of content", method: "POST", body: "a=b", headers: map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, status: 415},
		{name: "a large body", method: "POST", body: `"` + strings.Repeat("x", maxLine) + `"`, status: 413, says: "larger"},
		{name: "initialize", method: "POST", body: initialize, status: 200, says: "sandboxforge"},
		{name: "discover", method: "POST", body: discover, headers: modernly, status: 200, says: "2026-07-28"},
		{name: "a version of the future", method: "POST", body: strings.ReplaceAll(discover, "2026-07-28", "2099-01-01"), headers: map[string]string{"Mcp-Protocol-Version": "2099-01-01", "Mcp-Method": "server/discover"}, status: 400, says: "-32022"},
		{name: "a version of the past", method: "POST", body: initialize, headers: map[string]string{"Mcp-Protocol-Version": "2020-01-01"}, status: 400},
	} {
		e.run(t, url)
	}
	// Who may ask, on every method.
	for host, status := range map[string]int{
		"": 200, "localhost": 200, "localhost:8765": 200, "127.0.0.1:1": 200, "[::1]:8765": 200, "127.1.2.3": 200, "LOCALHOST": 200,
		"evil.example": 403, "evil.example:8765": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example": 403, "10.0.0.1": 403, "0.0.0.0": 403,
	} {
		e := post(initialize)
		e.name, e.host, e.status = "Host "+host, host, status
		e.run(t, url)
		if status == 403 {
			exchange{name: "GET with Host " + host, method: "GET", path: "/", host: host, status: 403}.run(t, url)
		}
	}
	for origin, status := range map[string]int{
		"http://localhost:3000": 200, "http://127.0.0.1": 200, "https://[::1]:9": 200,
		"http://evil.example": 403, "null": 403, "http://localhost.evil.example": 403, "http://localhost@evil.example": 403, "file://": 403, "ftp://localhost": 403, "http://evil.example/localhost": 403, "://": 403,
	} {
		e := post(initialize)
		e.name, e.headers, e.status = "Origin "+origin, map[string]string{"Origin": origin}, status
		e.run(t, url)
		for _, method := range []string{"GET", "DELETE", "OPTIONS", "PUT"} {
			if status == 403 {
				exchange{name: method + " with Origin " + origin, method: method, headers: e.headers, status: 403}.run(t, url)
			}
		}
	}
}

func TestBearerToken(t *testing.T) {
	checkLeaks(t)
	url := serveHTTP(t, testServer(t, newFake()), HTTPOptions{Token: "s3cret-token"})
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	for auth, status := range map[string]int{
		"": 401, "s3cret-token": 401, "Bearer": 401, "Bearer ": 401, "Bearer s3cret-toke": 401, "Bearer s3cret-tokenn": 401, "Basic s3cret-token": 401, "Bearer S3CRET-TOKEN": 401,
		"Bearer s3cret-token": 200, "bearer s3cret-token": 200,
	} {
		says := ""
		if status == 401 {
			says = "send the header Authorization: Bearer TOKEN, the value of MCP_HTTP_TOKEN"
		}
		h := exchange{name: auth, method: "POST", body: initialize, headers: map[string]string{"Authorization": auth}, status: status, says: says}.run(t, url)
		if got := h.Get("WWW-Authenticate"); (got != "") != (status == 401) {
			t.Errorf("%q: WWW-Authenticate %q", auth, got)
		}
	}
	exchange{name: "GET", method: "GET", headers: map[string]string{"Accept": "text/event-stream"}, status: 401}.run(t, url)
	exchange{name: "DELETE", method: "DELETE", headers: map[string]string{"Mcp-Session-Id": "x"}, status: 401}.run(t, url)
	// Off loopback the token decides, and any Host is right.
	exchange{name: "another Host", method: "POST", body: initialize, host: "vm-host.example:8765", headers: map[string]string{"Authorization": "Bearer s3cret-token"}, status: 200}.run(t, url)
}

// A body that never ends is bounded, chunked or not.
func TestEndlessBody(t *testing.T) {
	checkLeaks(t)
	url := serveHTTP(t, testServer(t, newFake()), HTTPOptions{Loopback: true})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "POST", url+endpoint, io.MultiReader(bytes.NewReader([]byte(`"`)), repeat('x')))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "*/*")
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	res, err := tr.RoundTrip(req)
	if err != nil {
		return // the server cut the connection, which is as good
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d", res.StatusCode)
	}
}
