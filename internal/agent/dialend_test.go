package agent_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"sandboxforge/internal/guest"
)

// TestDialTheOtherEndClosesFirst: the end of what the guest's socket sends
// reaches the host, although the host has not ended its own side.
func TestDialTheOtherEndClosesFirst(t *testing.T) {
	w := newWorld(t)
	w.context()
	dir := t.TempDir()
	sl, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: guest.Proxy(w.link, nil), HTTP2: guest.ServerConfig(), Protocols: new(http.Protocols)}
	srv.Protocols.SetUnencryptedHTTP2(true)
	go srv.Serve(sl) //nolint:errcheck // closed
	defer srv.Close()
	rt := guest.DialHTTP2(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(dir, "s"))
	})
	defer rt.CloseIdleConnections()
	clients := map[string]*guest.Client{"direct": w.client, "through a supervisor": guest.NewClient(rt)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("bye")) //nolint:errcheck // the reader tells
			c.Close()
		}
	}()
	for how, client := range clients {
		c, err := client.DialContext(w.context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); string(b) != "bye" || err != nil {
			t.Errorf("%s: %q, %v", how, b, err)
		}
		c.Close()
	}
}
