package agent_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"sandboxforge/internal/guest"
)

func BenchmarkPing(b *testing.B) {
	w := newWorld(b)
	ctx := w.context()
	for b.Loop() {
		if _, err := w.client.Ping(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRunTrue starts processes by shims of the test's own, large
// executable, with and without some waiting.
func BenchmarkRunTrue(b *testing.B) {
	for _, idle := range []int{0, 2} {
		b.Run(fmt.Sprintf("idle=%d", idle), func(b *testing.B) {
			w := newWorld(b, func(w *world) { w.cfg.IdleShims = idle })
			ctx := w.context()
			for b.Loop() {
				id := guest.NewID("b-")
				if _, err := w.client.Run(ctx, id, guest.Spec{Command: "true"}, nil); err != nil {
					b.Fatal(err)
				}
				w.client.Forget(ctx, id)
			}
		})
	}
}

func BenchmarkPutGet(b *testing.B) {
	w := newWorld(b)
	ctx := w.context()
	big := makeTar(b, tarEntry{Header: tar.Header{Name: "big"}, body: string(make([]byte, 32<<20))})
	var entries []tarEntry
	for i := range 2000 {
		entries = append(entries, tarEntry{Header: tar.Header{Name: fmt.Sprintf("d%d/f%d", i/50, i)}, body: string(make([]byte, 4096))})
	}
	small := makeTar(b, entries...)
	for name, data := range map[string][]byte{"big": big, "2000 small": small} {
		root := filepath.Join(w.dir, name)
		b.Run("put/"+name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if _, err := w.client.PutTar(ctx, guest.PutTar{Root: root}, bytes.NewReader(data)); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("get/"+name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				ts, err := w.client.GetTar(ctx, guest.GetTar{Root: root})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, ts); err != nil {
					b.Fatal(err)
				}
				ts.Close()
			}
		})
		// What the stream itself takes.
		b.Run("raw pipe/"+name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			x, y := socketPair(b)
			defer x.Close()
			go io.Copy(io.Discard, y)
			for b.Loop() {
				if _, err := x.Write(data); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("into cat/"+name, func(b *testing.B) {
			if len(data) > guest.MaxStdin {
				b.Skip("more than one stdin")
			}
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if _, err := w.client.Run(ctx, guest.NewID("b-"), guest.Spec{Command: "cat >/dev/null", Stdin: data}, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
		os.RemoveAll(root)
	}
}
