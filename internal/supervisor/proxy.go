package supervisor

import (
	"net/http"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

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
