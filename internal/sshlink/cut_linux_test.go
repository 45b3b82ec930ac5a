package sshlink_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/guest"
	"sandboxforge/internal/sshlink"
)

// cutter ends a connection after a number of bytes, both directions counted.
type cutter struct {
	net.Conn
	mu   sync.Mutex
	left int
}

func (c *cutter) spend(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n = min(n, c.left)
	c.left -= n
	return n
}

func (c *cutter) Write(p []byte) (int, error) {
	if n := c.spend(len(p)); n < len(p) {
		c.Conn.Write(p[:n])
		c.Conn.Close()
		return n, io.ErrClosedPipe
	}
	return c.Conn.Write(p)
}

func (c *cutter) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if k := c.spend(n); k < n {
		c.Conn.Close()
		return k, io.ErrClosedPipe
	}
	return n, err
}

// cuts makes each connection of cfg end after a number of bytes that next
// draws; 0: never.
func cuts(cfg *sshlink.Config, next func() int) {
	addr := cfg.Address
	cfg.Dial = func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", addr)
		if n := next(); err == nil && n > 0 {
			return &cutter{Conn: c, left: n}, nil
		}
		return c, err
	}
}

// TestCutInstallation: wherever a connection is cut, the next one completes what
// is missing.
func TestCutInstallation(t *testing.T) {
	b, err := built()
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewSource(1))
	whole := len(b.Agent) + len(b.Shim)
	for round := range 4 {
		p := newPlace(t)
		// Into the handshake and the first commands, then anywhere.
		offsets := []int{1 + r.Intn(6000), 1 + r.Intn(whole), whole - r.Intn(4000), whole + 8000 + r.Intn(8000)}
		var n int
		cuts(&p.cfg, func() int {
			if n++; n <= len(offsets) {
				return offsets[n-1]
			}
			return 0
		})
		c, leave := client(t, sshlink.New(p.cfg))
		if out, _ := run(t, c, "echo up"); out != "up\n" {
			t.Errorf("round %d: %q", round, out)
		}
		leave()
		for name, want := range map[string][]byte{"agent": b.Agent, "shim": b.Shim} {
			got, err := os.ReadFile(filepath.Join(p.root, "usr/lib/sandboxforge", name))
			if err != nil || digest(got) != digest(want) {
				t.Errorf("round %d, cut at %v: %s is not what was sent: %v", round, offsets, name, err)
			}
		}
	}
}

// TestCutConnection cuts the connection at random offsets during exec and put.
// exec completes with all its output; put is right or says that it failed.
func TestCutConnection(t *testing.T) {
	p := newPlace(t)
	_, leave := client(t, sshlink.New(p.cfg)) // installed
	leave()
	r := rand.New(rand.NewSource(2))
	var mu sync.Mutex
	limit, made := 0, 0
	cuts(&p.cfg, func() int {
		mu.Lock()
		defer mu.Unlock()
		made++
		if limit == 0 {
			return 0
		}
		return 30000 + r.Intn(limit)
	})
	c, _ := client(t, sshlink.New(p.cfg))
	mu.Lock()
	limit = 1 << 20
	mu.Unlock()
	p.srv.Cut()
	body := make([]byte, 300<<10)
	r2 := rand.New(rand.NewSource(3))
	r2.Read(body)
	put := 0
	for round := range 8 {
		var out bytes.Buffer
		proc, err := c.Run(within(t, 2*time.Minute), guest.NewID("t-"), guest.Spec{Command: "i=0; while [ $i -lt 3000 ]; do echo line $i of the output; i=$((i+1)); done; exit 5"}, func(o guest.Output) {
			if o.Dropped > 0 {
				t.Errorf("round %d: %d bytes dropped", round, o.Dropped)
			}
			out.Write(o.Data)
		})
		if err != nil || proc.ExitCode != 5 || bytes.Count(out.Bytes(), []byte("\n")) != 3000 {
			t.Fatalf("round %d: %+v, %v, %d bytes", round, proc, err, out.Len())
		}
		var archive bytes.Buffer
		w := tar.NewWriter(&archive)
		w.WriteHeader(&tar.Header{Name: "f", Mode: 0o644, Size: int64(len(body))})
		w.Write(body)
		w.Close()
		dir := filepath.Join(p.root, "put")
		if _, err := c.PutTar(within(t, 2*time.Minute), guest.PutTar{Root: dir}, bytes.NewReader(archive.Bytes())); err != nil {
			if !errors.Is(err, guest.ErrUnavailable) {
				t.Errorf("round %d: put: %v", round, err)
			}
			continue
		}
		put++
		if got, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || !bytes.Equal(got, body) {
			t.Errorf("round %d: put said that it was done, and the file is another: %v", round, err)
		}
		os.RemoveAll(dir)
	}
	t.Logf("%d connections, %d of 8 transfers came through", made, put)
	if made < 5 {
		t.Errorf("only %d connections: nothing was cut", made)
	}
}
