package agent_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"sandboxforge/internal/guest"
)

// cutter ends a stream after a number of bytes, both directions counted. What
// was under way at that moment is lost, and with mangle a bit of it is wrong.
type cutter struct {
	net.Conn
	mu     sync.Mutex
	left   int64
	mangle bool
	cuts   *int
}

func (c *cutter) spend(p []byte) (n int, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left < 0 {
		return len(p), false
	}
	if int64(len(p)) < c.left {
		c.left -= int64(len(p))
		return len(p), false
	}
	n = int(c.left)
	c.left = -1
	*c.cuts++
	return n, true
}

func (c *cutter) Write(p []byte) (int, error) {
	n, cut := c.spend(p)
	if !cut {
		return c.Conn.Write(p)
	}
	if c.mangle && n < len(p) {
		b := bytes.Clone(p)
		b[n] ^= 0x10
		return c.Conn.Write(b)
	}
	c.Conn.Write(p[:n])
	c.Conn.Close()
	return n, io.ErrClosedPipe
}

func (c *cutter) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if k, cut := c.spend(p[:n]); cut {
		if c.mangle && k < n {
			p[k] ^= 0x10
			return n, err
		}
		c.Conn.Close()
		return k, io.ErrClosedPipe
	}
	return n, err
}

// TestCutStream cuts or damages the stream at a thousand random offsets during
// exec, put and get. Every operation either fails saying so or is right to the
// last byte; exec always completes.
func TestCutStream(t *testing.T) {
	cuts := 1000
	if testing.Short() {
		cuts = 100
	}
	w := newWorld(t)
	rnd := rand.New(rand.NewSource(20260701))
	body := make([]byte, 200<<10)
	rnd.Read(body)
	src := filepath.Join(w.dir, "src")
	os.Mkdir(src, 0o755)
	os.WriteFile(filepath.Join(src, "data"), body, 0o644)
	want := sha256.Sum256(body)
	archive := makeTar(t, tarEntry{Header: tar.Header{Name: "data"}, body: string(body)})

	// One operation moves this many bytes; the cut falls somewhere in it.
	ops := []struct {
		name string
		size int64
		run  func(ctx context.Context, i int) error
	}{
		{"exec", 220 << 10, func(ctx context.Context, i int) error {
			h := sha256.New()
			id := fmt.Sprintf("cut-%d", i)
			p, err := w.client.Run(ctx, id, guest.Spec{Command: "cat " + src + "/data; exit 7"}, func(o guest.Output) { h.Write(o.Data) })
			if err != nil {
				return fmt.Errorf("exec must survive: %w", err)
			}
			if p.ExitCode != 7 || !bytes.Equal(h.Sum(nil), want[:]) {
				return fmt.Errorf("wrong output, %+v", p)
			}
			w.client.Forget(ctx, id)
			return nil
		}},
		{"put", 220 << 10, func(ctx context.Context, i int) error {
			root := filepath.Join(w.dir, "put")
			os.RemoveAll(root)
			_, err := w.client.PutTar(ctx, guest.PutTar{Root: root}, bytes.NewReader(archive))
			got, rerr := os.ReadFile(filepath.Join(root, "data"))
			whole := rerr == nil && sha256.Sum256(got) == want
			switch {
			case err == nil && !whole:
				return errors.New("success without the file")
			case err != nil && !errors.Is(err, guest.ErrUnavailable):
				return fmt.Errorf("not a broken link: %w", err)
			case rerr == nil && !whole:
				return errors.New("half a file")
			}
			return nil
		}},
		{"get", 220 << 10, func(ctx context.Context, i int) error {
			ts, err := w.client.GetTar(ctx, guest.GetTar{Root: src})
			if err != nil {
				if errors.Is(err, guest.ErrUnavailable) {
					return nil
				}
				return err
			}
			defer ts.Close()
			b, err := io.ReadAll(ts)
			if err != nil {
				if errors.Is(err, guest.ErrUnavailable) {
					return nil
				}
				return fmt.Errorf("not a broken link: %w", err)
			}
			tr := tar.NewReader(bytes.NewReader(b))
			h := sha256.New()
			if _, err := tr.Next(); err != nil {
				return err
			}
			io.Copy(h, tr)
			if !bytes.Equal(h.Sum(nil), want[:]) {
				return errors.New("success with the wrong bytes")
			}
			return nil
		}},
	}
	done := 0
	next := int64(-1)
	mangle := false
	w.mu.Lock()
	w.wrap = func(c io.ReadWriteCloser) io.ReadWriteCloser {
		w.mu.Lock()
		defer w.mu.Unlock()
		cut := &cutter{Conn: c.(net.Conn), left: next, mangle: mangle, cuts: &done}
		next = -1 // the connection after the cut lives
		return cut
	}
	w.mu.Unlock()
	attempts := 0
	for ; done < cuts && attempts < 3*cuts; attempts++ {
		op := ops[attempts%len(ops)]
		w.mu.Lock()
		next = rnd.Int63n(op.size)
		mangle = rnd.Intn(2) == 0
		w.mu.Unlock()
		// A fresh connection that will be cut.
		w.link.Pause()
		w.link.Resume()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		if err := w.link.WaitConnected(ctx); err != nil {
			t.Fatal(err)
		}
		if err := op.run(ctx, attempts); err != nil {
			t.Fatalf("%s, attempt %d: %v", op.name, attempts, err)
		}
		cancel()
	}
	t.Logf("%d cuts in %d operations", done, attempts)
	if done < cuts {
		t.Fatalf("only %d cuts", done)
	}
}
