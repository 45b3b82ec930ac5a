package workspace

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandboxforge/internal/agent"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/link"
)

// realAgent runs the guest's agent in this process, behind the real link over
// a socket pair. Guest paths are host paths there.
func realAgent(t testing.TB) *guest.Client {
	t.Helper()
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	log := slog.New(slog.DiscardHandler)
	a, err := agent.New(agent.Config{Version: "test", RunDir: filepath.Join(dir, "run"), SpoolDir: filepath.Join(dir, "spool"),
		Shim: []string{"/bin/false"}, User: fmt.Sprint(os.Geteuid()), Etc: "/etc", Log: log, PowerOff: func(bool) {}})
	if err != nil {
		t.Fatal(err)
	}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); a.Serve(ctx, link.NewListener(ends[1])) }()
	c, err := guest.Connect(ctx, ends[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); cancel(); <-done; a.Close() })
	return c.Client()
}

// TestAgainstTheRealAgent is a short story through the real protocol.
func TestAgainstTheRealAgent(t *testing.T) {
	c := realAgent(t)
	p := newPair(t)
	p.req.Guest, p.req.Remote = FromClient(c), p.guest
	for i := range 40 {
		write(t, p.host, fmt.Sprintf("d%d/f%d", i%4, i), fmt.Sprint("content ", i))
	}
	write(t, p.host, "big", string(bytes.Repeat([]byte("0123456789abcdef"), 200_000)))
	write(t, p.host, ".venv/x", "no")
	write(t, p.host, "sp ace/ü\nnew\xff", "odd")
	os.Symlink("d0", filepath.Join(p.host, "link"))
	os.MkdirAll(filepath.Join(p.host, "empty"), 0o755)
	r := p.up()
	if r.FilesSent != 43 || r.Status != "ok" {
		t.Errorf("%+v", r)
	}
	p.wantGuest(without(readTree(p.host), ".venv"))
	if r = p.up(); r.FilesSent != 0 || r.FilesUnchanged != 42 {
		t.Errorf("%+v", r)
	}
	// Many changes on both sides, some of them conflicts.
	for i := range 20 {
		write(t, p.guest, fmt.Sprintf("d%d/f%d", i%4, i), fmt.Sprint("CONTENT ", i))
	}
	write(t, p.host, "d0/f0", "host 0!!!")
	os.RemoveAll(filepath.Join(p.guest, "empty"))
	write(t, p.guest, "new/deep/file", "G")
	d := p.down(DownOptions{})
	if len(d.Updated) != 19 || len(d.Conflicts) != 1 || d.Conflicts[0].Path != "d0/f0" || len(d.Created) != 1 {
		t.Errorf("%+v", d)
	}
	if d = p.down(DownOptions{OnConflict: KeepGuest}); len(d.Updated) != 1 {
		t.Errorf("%+v", d)
	}
	if x := cmp.Diff(readTree(p.guest), without(readTree(p.host), ".venv")); x != "" {
		t.Errorf("guest and host differ: %s", x)
	}
	os.RemoveAll(filepath.Join(p.host, "d1"))
	if r = p.up(); r.FilesDeleted != 10 {
		t.Errorf("%+v", r)
	}
	res, err := CopyTo(context.Background(), CopyRequest{Guest: p.req.Guest, Local: p.at("d2"), Remote: p.guest + "/copy"})
	if err != nil || res.Files != 10 {
		t.Errorf("%+v %v", res, err)
	}
	res, err = CopyFrom(context.Background(), CopyRequest{Guest: p.req.Guest, Local: p.at("back"), Remote: p.guest + "/copy"})
	if err != nil || res.Files != 10 {
		t.Errorf("%+v %v", res, err)
	}
	col, err := Collect(context.Background(), CollectRequest{Guest: p.req.Guest, RemotePaths: []string{p.guest + "/**/f2", p.guest + "/nope"}, Local: p.at("art")})
	if err != nil || len(col.Artifacts) != 2 || len(col.Failed) != 1 {
		t.Errorf("%+v %v", col, err)
	}
}

const benchFiles, benchSize = 2000, 4 << 10

func benchTree(b *testing.B, dir string) {
	data := make([]byte, benchSize)
	for i := range benchFiles {
		rand.Read(data)
		p := filepath.Join(dir, fmt.Sprintf("pkg%02d/sub%d/file%04d.go", i%40, i%4, i))
		os.MkdirAll(filepath.Dir(p), 0o755)
		if err := os.WriteFile(p, data, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	// Older than the window in which a stamp is not trusted.
	time.Sleep(2 * racyWindow)
}

// BenchmarkUp compares, over one link, a bare tar stream of 2,000 files of 4
// KiB, their first sync, and the sync of nothing.
func BenchmarkUp(b *testing.B) {
	for _, kind := range []string{"agent", "directory"} {
		setup := func(b *testing.B) (*pair, Guest) {
			p := newPair(b)
			benchTree(b, p.host)
			if kind == "agent" {
				p.req.Guest, p.req.Remote = FromClient(realAgent(b)), p.guest
			}
			return p, p.req.Guest
		}
		b.Run(kind+"/bare tar", func(b *testing.B) {
			p, g := setup(b)
			for b.Loop() {
				b.StopTimer()
				os.RemoveAll(p.guest)
				b.StartTimer()
				r, w := io.Pipe()
				go func() {
					tw := tar.NewWriter(w)
					tw.AddFS(os.DirFS(p.host))
					w.CloseWithError(tw.Close())
				}()
				if _, err := g.PutTar(context.Background(), PutTar{Root: p.req.Remote}, r); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(kind+"/first", func(b *testing.B) {
			p, _ := setup(b)
			for b.Loop() {
				b.StopTimer()
				os.RemoveAll(p.guest)
				ForgetManifests(p.req.ManifestDir)
				b.StartTimer()
				if r := p.up(); r.FilesSent != benchFiles {
					b.Fatalf("%+v", r)
				}
			}
		})
		b.Run(kind+"/unchanged", func(b *testing.B) {
			p, _ := setup(b)
			p.up()
			for b.Loop() {
				if r := p.up(); r.FilesSent != 0 || r.FilesUnchanged != benchFiles {
					b.Fatalf("%+v", r)
				}
			}
		})
		b.Run(kind+"/one changed", func(b *testing.B) {
			p, _ := setup(b)
			p.up()
			for i := 0; b.Loop(); i++ {
				write(b, p.host, "pkg00/sub0/file0000.go", fmt.Sprint(i))
				if r := p.up(); r.FilesSent != 1 {
					b.Fatalf("%+v", r)
				}
			}
		})
		b.Run(kind+"/down", func(b *testing.B) {
			p, _ := setup(b)
			p.up()
			for b.Loop() {
				b.StopTimer()
				os.RemoveAll(p.host)
				os.Mkdir(p.host, 0o755)
				ForgetManifests(p.req.ManifestDir)
				b.StartTimer()
				if r := p.down(DownOptions{}); len(r.Created) != benchFiles {
					b.Fatalf("%+v", r.Failed)
				}
			}
		})
	}
}
