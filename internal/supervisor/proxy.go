package supervisor

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"connectrpc.com/connect"
)

// newProxy forwards RPCs to the agent, streaming both ways. A caller that
// leaves cancels its RPC in the guest: the request's context is the stream's.
func newProxy(rt http.RoundTripper, log *slog.Logger) http.Handler {
	ew := connect.NewErrorWriter()
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", "guest", "guest"
		},
		Transport:     rt,
		FlushInterval: -1,
		BufferPool:    &bufferPool{},
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				return // nobody reads it
			}
			ce := connect.NewError(connect.CodeUnavailable, errors.New("the guest agent cannot be reached"))
			if !ew.IsSupported(r) {
				http.Error(w, ce.Message(), http.StatusBadGateway)
				return
			}
			ew.Write(w, r, ce)
		},
	}
}

// bufferPool holds the copy buffers of idle streams.
type bufferPool struct{ p sync.Pool }

func (b *bufferPool) Get() []byte {
	if v, ok := b.p.Get().(*[]byte); ok {
		return *v
	}
	return make([]byte, 32<<10)
}

func (b *bufferPool) Put(v []byte) { b.p.Put(&v) }

// trimmer gives memory back to the host when the last of a burst of RPCs is
// done: a supervisor idles for most of its life.
type trimmer struct {
	mu     sync.Mutex
	active int
	timer  *time.Timer
}

// trimDelay is how long the proxy must be idle; trimAbove is how much must be
// there to give.
const (
	trimDelay = 3 * time.Second
	trimAbove = 2 << 20
)

func (t *trimmer) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.add(1)
		defer t.add(-1)
		h.ServeHTTP(w, r)
	})
}

func (t *trimmer) add(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.active += n
	if t.active > 0 {
		return
	}
	if t.timer == nil {
		t.timer = time.AfterFunc(trimDelay, t.trim)
	} else {
		t.timer.Reset(trimDelay)
	}
}

func (t *trimmer) trim() {
	t.mu.Lock()
	idle := t.active == 0
	t.mu.Unlock()
	if idle {
		trimMemory()
	}
}

func trimMemory() {
	m := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(m)
	if m[0].Value.Uint64()+m[1].Value.Uint64() > trimAbove {
		debug.FreeOSMemory()
	}
}

// roundTripper sends requests over the link that there is at the moment.
func (s *supervisor) roundTripper() http.RoundTripper {
	return roundTripFunc(func(r *http.Request) (*http.Response, error) {
		l := s.currentLink()
		if l == nil {
			return nil, errLinkDown
		}
		return l.RoundTrip(r)
	})
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
