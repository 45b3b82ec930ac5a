package agent_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"sandboxforge/internal/guest"
)

// TestOverPort talks to an agent in a real guest, behind the socket of a virtio
// port that SANDBOXFORGE_TEST_PORT names, and logs what things take there.
func TestOverPort(t *testing.T) {
	path := os.Getenv("SANDBOXFORGE_TEST_PORT")
	if path == "" {
		t.Skip("SANDBOXFORGE_TEST_PORT names no socket")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	began := time.Now()
	l := guest.NewLink(func(ctx context.Context) (io.ReadWriteCloser, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}, nil)
	defer l.Close()
	if err := l.WaitConnected(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("linked after %v", time.Since(began))
	c := guest.NewClient(l)
	info, err := c.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", info)

	measure := func(what string, n int, f func(i int) error) {
		t.Helper()
		var d []time.Duration
		for i := range n {
			t0 := time.Now()
			if err := f(i); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			d = append(d, time.Since(t0))
		}
		slices.Sort(d)
		t.Logf("%s: median %v, min %v, max %v of %d", what, d[n/2], d[0], d[n-1], n)
	}
	measure("ping", 50, func(int) error { _, err := c.Ping(ctx); return err })
	measure("run true", 20, func(int) error {
		p, err := c.Run(ctx, guest.NewID("m-"), guest.Spec{Command: "true"}, nil)
		if err == nil && p.ExitCode != 0 {
			err = fmt.Errorf("%+v", p)
		}
		return err
	})
	var out, errb bytes.Buffer
	p, err := c.Run(ctx, guest.NewID("loop-"), guest.Spec{Command: "for i in 1 2 3 4 5 6 7 8 9 10; do sh -c true; done"}, collect(&out, &errb))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ten times sh -c true inside the guest: %v", p.FinishedAt.Sub(p.StartedAt))
	p, err = c.Run(ctx, guest.NewID("id-"), guest.Spec{Command: "cat /proc/self/status /proc/self/cgroup; cat /proc/self/oom_score_adj"}, collect(&out, &errb))
	if err != nil || p.ExitCode != 0 {
		t.Fatalf("%+v %v", p, err)
	}
	t.Logf("%s%s", out.String(), errb.String())

	body := make([]byte, 32<<20)
	rand.New(rand.NewSource(1)).Read(body)
	archive := makeTar(t, tarEntry{Header: tar.Header{Name: "big"}, body: string(body)})
	measure("put 32 MiB", 3, func(int) error {
		_, err := c.PutTar(ctx, guest.PutTar{Root: "/tmp/put"}, bytes.NewReader(archive))
		return err
	})
	measure("get 32 MiB", 3, func(int) error {
		ts, err := c.GetTar(ctx, guest.GetTar{Root: "/tmp/put"})
		if err != nil {
			return err
		}
		defer ts.Close()
		tr := tar.NewReader(ts)
		if _, err := tr.Next(); err != nil {
			return err
		}
		h := sha256.New()
		if _, err := io.Copy(h, tr); err != nil {
			return err
		}
		if want := sha256.Sum256(body); !bytes.Equal(h.Sum(nil), want[:]) {
			return fmt.Errorf("wrong bytes")
		}
		return nil
	})
	var small []tarEntry
	for i := range 2000 {
		small = append(small, tarEntry{Header: tar.Header{Name: fmt.Sprintf("d%d/f%d", i/50, i)}, body: string(body[i*4096 : i*4096+4096])})
	}
	many := makeTar(t, small...)
	measure("put 2000 files of 4 KiB", 3, func(i int) error {
		_, err := c.PutTar(ctx, guest.PutTar{Root: fmt.Sprintf("/tmp/many%d", i)}, bytes.NewReader(many))
		return err
	})
	measure("the same tar into cat", 3, func(i int) error {
		_, err := c.Run(ctx, guest.NewID("cat-"), guest.Spec{Command: "cat >/dev/null", Stdin: many}, nil)
		return err
	})
	measure("tree of 2000 files", 3, func(i int) error {
		n := 0
		for _, err := range c.Tree(ctx, guest.TreeRequest{Root: "/tmp/many0"}) {
			if err != nil {
				return err
			}
			n++
		}
		if n != 2040 {
			return fmt.Errorf("%d entries", n)
		}
		return nil
	})
	measure("20 MiB of output", 1, func(int) error {
		n := 0
		_, err := c.Run(ctx, guest.NewID("out-"), guest.Spec{Command: "dd if=/dev/zero bs=65536 count=320 2>/dev/null"}, func(o guest.Output) { n += len(o.Data) + int(o.Dropped) })
		if err == nil && n != 20<<20 {
			err = fmt.Errorf("%d bytes", n)
		}
		return err
	})
	measure("reconnect", 10, func(int) error {
		l.Pause()
		l.Resume()
		return l.WaitConnected(ctx)
	})
	if err := c.SetIdentity(ctx, guest.Identity{Hostname: "fresh", MachineID: "0123456789abcdef0123456789abcdef", Time: time.Now(), Entropy: body[:64]}); err != nil {
		t.Error(err)
	}
	if size, err := c.GrowRoot(ctx); err != nil {
		t.Error(err)
	} else {
		t.Logf("root file system: %d bytes, before %d", size, info.RootSize)
	}
	after, err := c.Info(ctx)
	if err != nil || after.Hostname != "fresh" || after.RootDeviceLarger {
		t.Errorf("%+v %v", after, err)
	}
	// The agent is killed and started again by the guest's init.
	id := guest.NewID("over-")
	if _, _, err := c.Start(ctx, id, guest.Spec{Command: "sleep 2; echo survived; exit 9"}); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	if _, err := c.Run(ctx, guest.NewID("kill-"), guest.Spec{User: "root", Command: `for p in /proc/[0-9]*; do case "$(cat $p/cmdline 2>/dev/null | tr '\0' ' ')" in *"agent serve "*) kill -9 ${p#/proc/};; esac; done`}, nil); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	p, err = c.Follow(ctx, id, guest.Offsets{}, collect(&out, &errb))
	if err != nil || p.ExitCode != 9 || out.String() != "survived\n" {
		t.Errorf("%+v %v %q", p, err, out.String())
	}
	t.Logf("agent killed, followed to the end after %v", time.Since(before))
	if err := c.SetDeadline(ctx, 200*time.Millisecond); err != nil {
		t.Error(err)
	}
}
