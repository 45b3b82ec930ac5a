package mcpserver

import (
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
)

// Which connection is refused is settled before a byte of it is read, and the
// server goes on with the next one.
func TestRefusePeer(t *testing.T) {
	checkLeaks(t)
	var wanted atomic.Bool
	var asked atomic.Int32
	s := New(Options{Service: newFake(), Logger: testLogger(t), RefusePeer: func(c net.Conn) string {
		asked.Add(1)
		if wanted.Load() {
			return ""
		}
		return "not wanted"
	}})
	used := newActivity(s.opts.clock)
	web, err := s.listen(t.Context(), Config{HTTP: true, Host: "127.0.0.1"}, used)
	if err != nil {
		t.Fatal(err)
	}
	down := make(chan error, 1)
	go func() { down <- web.serve() }()
	t.Cleanup(func() { s.shutdown(web, down) })

	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	get := func() (int, error) {
		req, err := http.NewRequestWithContext(t.Context(), "GET", web.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := tr.RoundTrip(req)
		if err != nil {
			return 0, err
		}
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		return res.StatusCode, err
	}
	for range 2 {
		if status, err := get(); err == nil {
			t.Errorf("a refused peer was answered %d", status)
		}
	}
	wanted.Store(true)
	before := asked.Load()
	for range 3 {
		if status, err := get(); err != nil || status != http.StatusNotAcceptable {
			t.Errorf("status %d, %v", status, err)
		}
	}
	if got := asked.Load() - before; got != 1 {
		t.Errorf("asked %d times for one connection", got)
	}
}
