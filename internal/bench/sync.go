package bench

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
)

const fileSize = 4 << 10

// sync compares first syncs with the same files as a tar through the same link
// into the guest's tar, and with a second sync that finds nothing to do.
func (b *bench) sync(ctx context.Context) error {
	return b.with(ctx, func(s *server) error {
		res, err := s.create(ctx, map[string]any{"auto_bootstrap": false})
		if err != nil {
			return err
		}
		few, many := filepath.Join(b.work, "many"), filepath.Join(b.work, "large")
		if err := b.manyFiles(few); err != nil {
			return err
		}
		if err := b.largeFile(many); err != nil {
			return err
		}
		if err := b.syncOf(ctx, s, res.InstanceID, few, fmt.Sprintf("%d files of 4 KiB", b.o.Files), 3); err != nil {
			return err
		}
		return b.syncOf(ctx, s, res.InstanceID, many, fmt.Sprintf("one file of %d MiB", b.o.BulkMiB), 1)
	})
}

func (b *bench) manyFiles(dir string) error {
	rnd := rand.NewChaCha8([32]byte{1})
	body := make([]byte, fileSize)
	for i := range b.o.Files {
		path := filepath.Join(dir, fmt.Sprintf("d%02d/f%05d.bin", i%50, i))
		_, _ = rnd.Read(body) // never fails
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, body, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) largeFile(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "large.bin"))
	if err != nil {
		return err
	}
	if _, err := io.CopyN(f, rand.NewChaCha8([32]byte{2}), int64(b.o.BulkMiB)<<20); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func (b *bench) syncOf(ctx context.Context, s *server, id, local, what string, rounds int) error {
	c, err := b.dial(ctx, id)
	if err != nil {
		return err
	}
	defer c.Close()
	var floorUp, up, again, floorDown, down []float64
	timed := func(into *[]float64, f func() error) error {
		began := time.Now()
		err := f()
		*into = append(*into, ms(time.Since(began)))
		return err
	}
	for i := range rounds {
		b.say("sync of %s, round %d", what, i+1)
		remote := fmt.Sprintf("/tmp/sync-%s-%d", filepath.Base(local), i)
		args := map[string]any{"instance_id": id, "local_path": local, "remote_path": remote}
		upCall := func() error { return s.call(ctx, "sync_workspace_to_instance", args, nil) }
		back := filepath.Join(b.work, "back", filepath.Base(remote))
		if err := os.MkdirAll(back, 0o755); err != nil {
			return err
		}
		for _, step := range []struct {
			into *[]float64
			f    func() error
		}{
			{&floorUp, func() error { return untar(ctx, c.Guest(), local, remote+"-floor") }},
			{&up, upCall},
			{&again, upCall},
			{&floorDown, func() error { return tarOut(ctx, c.Guest(), remote) }},
			{&down, func() error {
				return s.call(ctx, "sync_instance_to_workspace", map[string]any{"instance_id": id, "local_path": back, "remote_path": remote}, nil)
			}},
		} {
			if err := timed(step.into, step.f); err != nil {
				return err
			}
		}
		if _, err := s.run(ctx, id, "rm -rf "+remote+" "+remote+"-floor"); err != nil {
			return err
		}
		if err := os.RemoveAll(back); err != nil {
			return err
		}
	}
	b.add(figure("sync up of "+what, "ms", "sync_workspace_to_instance into an empty directory", up))
	b.add(figure("  a tar of it through the same link", "ms", "tar -x in the guest, fed over the supervisor's socket", floorUp))
	b.add(figure("  sync again, unchanged", "ms", "sync_workspace_to_instance", again))
	b.add(figure("sync down of "+what, "ms", "sync_instance_to_workspace into an empty directory", down))
	b.add(figure("  a tar of it through the same link", "ms", "tar -c in the guest, read over the supervisor's socket", floorDown))
	return nil
}

// untar feeds a tar of a directory to the guest's own tar.
func untar(ctx context.Context, g *guest.Client, local, to string) error {
	id := guest.NewID("bench-")
	if _, _, err := g.Start(ctx, id, guest.Spec{Command: "mkdir -p " + to + " && tar -x -C " + to, StdinOpen: true}); err != nil {
		return err
	}
	at, err := g.Attach(ctx, id, guest.Offsets{})
	if err != nil {
		return err
	}
	defer at.Close()
	w := &stdinWriter{at: at, buf: bytes.NewBuffer(make([]byte, 0, stdinChunk))}
	tw := tar.NewWriter(w)
	if err := tw.AddFS(os.DirFS(local)); err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	if err := w.flush(); err != nil {
		return err
	}
	if err := at.CloseStdin(); err != nil {
		return err
	}
	for {
		ev, err := at.Next()
		if err != nil {
			return err
		}
		if ev.Ended != nil {
			if ev.Ended.ExitCode != 0 {
				return fault.New(fault.Internal, "tar in the guest ended with %d", ev.Ended.ExitCode)
			}
			return nil
		}
	}
}

const stdinChunk = 256 << 10

// stdinWriter sends what is written in large messages.
type stdinWriter struct {
	at  *guest.Attachment
	buf *bytes.Buffer
}

func (w *stdinWriter) Write(p []byte) (int, error) {
	w.buf.Write(p)
	if w.buf.Len() < stdinChunk {
		return len(p), nil
	}
	return len(p), w.flush()
}

func (w *stdinWriter) flush() error {
	for w.buf.Len() > 0 {
		if err := w.at.SendStdin(w.buf.Next(stdinChunk)); err != nil {
			return err
		}
	}
	w.buf.Reset()
	return nil
}

// tarOut reads a tar of a directory from the guest's own tar.
func tarOut(ctx context.Context, g *guest.Client, from string) error {
	var n int64
	p, err := g.Run(ctx, guest.NewID("bench-"), guest.Spec{Command: "tar -c -C " + from + " .", SpoolLimit: 2 << 30}, func(o guest.Output) {
		n += int64(len(o.Data)) + int64(o.Dropped)
	})
	if err != nil {
		return err
	}
	if p.ExitCode != 0 || n == 0 {
		return fault.New(fault.Internal, "tar in the guest ended with %d after %d bytes", p.ExitCode, n)
	}
	return nil
}
