package mcpserver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	endpoint       = "/mcp"
	modern         = "2026-07-28" // the first version without sessions
	versionHeader  = "Mcp-Protocol-Version"
	sessionHeader  = "Mcp-Session-Id"
	sessionTimeout = 12 * time.Hour
	bodyDeadline   = 30 * time.Second
)

// HTTPOptions say who may talk to the HTTP handler.
type HTTPOptions struct {
	// Loopback: the listener is on a loopback address, so that every request
	// must name a loopback host (a web page that rebinds its name to this
	// address names its own).
	Loopback bool
	// Token, if set, must come with every request as a bearer token.
	Token string
}

// Handler is the whole HTTP side: /mcp in both eras behind the checks, 404
// elsewhere. used may be nil.
func (s *Server) Handler(o HTTPOptions, used *activity) http.Handler {
	log := slog.New(quiet{s.log.Handler()})
	get := func(*http.Request) *mcp.Server { return s.mcp }
	sessionless := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		Stateless:                    true,
		PropagateRequestCancellation: true,
		DisableLocalhostProtection:   true, // checkHost is stricter
		Logger:                       log,
	})
	sessions := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{
		SessionTimeout:             sessionTimeout,
		EventStore:                 mcp.NewMemoryEventStore(nil),
		DisableLocalhostProtection: true,
		Logger:                     log,
	})
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			s.calls.end(r.Header.Get(sessionHeader))
		}
		if r.Header.Get(versionHeader) >= modern && r.Header.Get(sessionHeader) == "" {
			sessionless.ServeHTTP(w, r)
		} else {
			sessions.ServeHTTP(w, r)
		}
	})
	h = wholeBody(h)
	h = acceptable(h)
	if used != nil {
		h = count(h, used)
	}
	if o.Token != "" {
		h = bearer(h, o.Token)
	}
	mux := http.NewServeMux()
	mux.Handle(endpoint, h)
	return s.alive(checkOrigin(checkHost(mux, o.Loopback)))
}

// alive turns requests away while the server shuts down: on a connection that
// is kept alive they could open a session that nobody ends.
func (s *Server) alive(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.root.Err() != nil {
			w.Header().Set("Connection", "close")
			httpError(w, http.StatusServiceUnavailable, jsonrpc.CodeInternalError, "the server is shutting down")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// checkHost keeps web pages out that reach a loopback listener by a host name
// of their own.
func checkHost(next http.Handler, loopback bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if loopback && !isLoopbackHost(hostOnly(r.Host)) {
			httpError(w, http.StatusForbidden, jsonrpc.CodeInvalidRequest, fmt.Sprintf("forbidden Host %q: this server is reached as 127.0.0.1, [::1] or localhost", r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// checkOrigin keeps web pages out, on every method: browsers send an Origin,
// MCP clients do not, and pages served from this machine are let in.
func checkOrigin(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, origin := range r.Header.Values("Origin") {
			u, err := url.Parse(origin)
			if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.User != nil || !isLoopbackHost(u.Hostname()) {
				httpError(w, http.StatusForbidden, jsonrpc.CodeInvalidRequest, fmt.Sprintf("forbidden Origin %q", origin))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// hostOnly is a Host header without its port.
func hostOnly(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}

// isLoopbackHost takes a name or an address without brackets.
func isLoopbackHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Zone() == "" && ip.Unmap().IsLoopback()
}

// bearer asks for the token on every request.
func bearer(next http.Handler, token string) http.Handler {
	want := sha256.Sum256([]byte(token))
	verify := func(_ context.Context, got string, _ *http.Request) (*auth.TokenInfo, error) {
		have := sha256.Sum256([]byte(got))
		if subtle.ConstantTimeCompare(want[:], have[:]) != 1 {
			return nil, auth.ErrInvalidToken
		}
		return &auth.TokenInfo{UserID: "operator"}, nil
	}
	inner := auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Del("WWW-Authenticate")
			next.ServeHTTP(w, r)
		}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="sandboxforge"`)
		// The library's own refusal does not say what to do.
		scheme, got, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
		if _, err := verify(r.Context(), strings.TrimSpace(got), r); err != nil || !strings.EqualFold(scheme, "Bearer") {
			httpError(w, http.StatusUnauthorized, jsonrpc.CodeInvalidRequest, "send the header Authorization: Bearer TOKEN, the value of MCP_HTTP_TOKEN")
			return
		}
		inner.ServeHTTP(w, r)
	})
}

func count(next http.Handler, used *activity) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		used.add(1)
		defer used.add(-1)
		next.ServeHTTP(w, r)
	})
}

// acceptable answers 406 to what cannot take the answer, first of all to a
// plain curl of the endpoint, whose Accept is */*.
func acceptable(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		accept := strings.ToLower(strings.Join(r.Header.Values("Accept"), ","))
		stream := strings.Contains(accept, "text/event-stream")
		anything := strings.Contains(accept, "*/*")
		switch {
		case r.Method == http.MethodGet && !stream:
			httpError(w, http.StatusNotAcceptable, -32000, "Not Acceptable: this is an MCP endpoint; a GET must accept text/event-stream. Point an MCP client (transport streamable-http) at this URL")
		case r.Method == http.MethodPost && !anything && !(stream && strings.Contains(accept, "application/json")):
			httpError(w, http.StatusNotAcceptable, -32000, "Not Acceptable: a POST must accept both application/json and text/event-stream")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// wholeBody reads the body of a POST before anything else does, in bounded
// time and memory, and answers what is not JSON.
func wholeBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		rc := http.NewResponseController(w)
		_ = rc.SetReadDeadline(time.Now().Add(bodyDeadline)) // a recorder in a test has none
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxLine))
		_ = rc.SetReadDeadline(time.Time{})
		var tooLarge *http.MaxBytesError
		switch {
		case errors.As(err, &tooLarge):
			httpError(w, http.StatusRequestEntityTooLarge, jsonrpc.CodeInvalidRequest, fmt.Sprintf("the body is larger than %d bytes", maxLine))
			return
		case err != nil:
			httpError(w, http.StatusBadRequest, jsonrpc.CodeParseError, "the body could not be read")
			return
		case strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") && !json.Valid(body):
			httpError(w, http.StatusBadRequest, jsonrpc.CodeParseError, "the body is not JSON")
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		next.ServeHTTP(w, r)
	})
}

// httpError answers with a JSON-RPC error that belongs to no call.
func httpError(w http.ResponseWriter, status int, code int64, text string) {
	raw, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": nil, "error": map[string]any{"code": code, "message": text}})
	if err != nil {
		http.Error(w, text, status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(raw, '\n'))
}
