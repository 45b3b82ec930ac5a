package guest

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"
)

// Proxy returns a handler that forwards the guest protocol, streaming both
// ways, to an agent behind rt (a Conn's round-tripper or a Link). A request
// that could not be sent is answered so that the far Client can tell.
func Proxy(rt http.RoundTripper, log *slog.Logger) http.Handler {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	target := &url.URL{Scheme: "http", Host: "guest"}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = "guest"
		},
		Transport:     endsWithAnswer{rt},
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if errors.Is(err, errUnsent) {
				w.Header().Set(headerUnsent, "1")
			}
			log.Debug("request to the guest failed", "path", r.URL.Path, "error", err)
			w.WriteHeader(http.StatusServiceUnavailable)
		},
		BufferPool: proxyBuffers{},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor < 2 || !strings.HasPrefix(r.URL.Path, "/sandboxforge.guest.v1.") {
			http.NotFound(w, r)
			return
		}
		// Both ways at once: the answer may begin before the request has ended.
		http.NewResponseController(w).EnableFullDuplex() //nolint:errcheck // HTTP/2 always is
		if hasNoBody(r) {
			r.Body = http.NoBody
		}
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestBody{}, r.Body)))
	})
}

// endsWithAnswer ends a request when its answer has ended. The reverse proxy
// shields the request's body from being closed, and then waits for a reader of
// it that nothing wakes: a connection whose far end was closed first would seem
// to stay open.
type endsWithAnswer struct{ rt http.RoundTripper }

// requestBody is the key of the body as it came in.
type requestBody struct{}

func (e endsWithAnswer) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := e.rt.RoundTrip(r)
	if in, ok := r.Context().Value(requestBody{}).(io.Closer); ok && err == nil {
		resp.Body = &answer{resp.Body, in}
	}
	return resp, err
}

type answer struct {
	io.ReadCloser
	request io.Closer
}

func (a *answer) Close() error {
	a.request.Close() //nolint:errcheck // whoever reads it is told
	return a.ReadCloser.Close()
}

func hasNoBody(r *http.Request) bool { return r.ContentLength == 0 && r.Method == http.MethodGet }

type proxyBuffers struct{}

func (proxyBuffers) Get() []byte { return make([]byte, 64<<10) }
func (proxyBuffers) Put([]byte)  {}

// ServerConfig is the HTTP/2 configuration for a server that serves a Proxy.
func ServerConfig() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams:          1000,
		MaxReadFrameSize:              128 << 10,
		MaxReceiveBufferPerConnection: 4<<20 - 1,
		MaxReceiveBufferPerStream:     4<<20 - 1,
	}
}

// DialHTTP2 returns a round-tripper that speaks plain HTTP/2 over what dial
// opens, for a Client whose agent is behind a Proxy. CloseIdleConnections frees
// its connections.
func DialHTTP2(dial func(ctx context.Context) (net.Conn, error)) *http.Transport {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := dial(ctx)
			if err != nil {
				return nil, &unsentError{err}
			}
			return c, nil
		},
		DisableCompression: true,
		IdleConnTimeout:    5 * time.Minute,
		HTTP2: &http.HTTP2Config{
			MaxReadFrameSize:              128 << 10,
			MaxReceiveBufferPerConnection: 4<<20 - 1,
			MaxReceiveBufferPerStream:     4<<20 - 1,
		},
	}
	t.Protocols = new(http.Protocols)
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}
