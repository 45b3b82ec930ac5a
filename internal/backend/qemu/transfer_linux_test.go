package qemu

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/guest"
)

// TestSentMemoryIsWhole: what QEMU sends of a busy guest with several processors
// is, byte for byte, what its process has in memory while the guest stands still.
func TestSentMemoryIsWhole(t *testing.T) {
	conf := newConfig(t)
	conf.Blind = true
	b, _ := openBackend(t, conf)
	s := spec("vm-1")
	s.CPUs = 2
	if err := b.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	v, c := bootVM(t, b, "vm-1")
	busy := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx, guest.NewID("busy"), guest.Spec{User: "root", Command: "i=0; while :; do i=$((i+1)); echo $i > /run/new; mv /run/new /run/count; test $i = 20 && echo up; done"}, //nolint:errcheck // it ends with the test
			func(guest.Output) { close(busy) })
	}()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-busy:
	case <-done:
		t.Fatal("the guest is not busy")
	}
	for i, dir := range []string{"a", "b", "c"} {
		dir = filepath.Join(t.TempDir(), dir)
		var process string
		b.frozen = func(v *vm) { process = memoryNow(t, v) }
		st, err := v.Save(t.Context(), dir, backend.SaveOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if process == "" {
			t.Fatal("the memory was not sent")
		}
		if n := differingPages(t, process, filepath.Join(dir, stateMemory)); n > 0 {
			t.Errorf("save %d: QEMU sent %d other pages than it has", i, n)
		}
		t.Logf("save %d: pause %s, the reading of the process's memory included", i, st.Pause)
	}
}

func differingPages(t *testing.T, a, b string) (n int) {
	t.Helper()
	fa, err := os.Open(a)
	if err != nil {
		t.Fatal(err)
	}
	defer fa.Close()
	fb, err := os.Open(b)
	if err != nil {
		t.Fatal(err)
	}
	defer fb.Close()
	ra, rb := bufio.NewReaderSize(fa, 1<<20), bufio.NewReaderSize(fb, 1<<20)
	pa, pb := make([]byte, ramPageSize), make([]byte, ramPageSize)
	for {
		_, ea := io.ReadFull(ra, pa)
		_, eb := io.ReadFull(rb, pb)
		if ea == io.EOF && eb == io.EOF {
			return n
		}
		if ea != nil || eb != nil {
			t.Fatal(ea, eb)
		}
		if !bytes.Equal(pa, pb) {
			n++
		}
	}
}

// memoryNow writes what a VM has in its memory to a file, by the other way.
func memoryNow(t *testing.T, v *vm) string {
	t.Helper()
	m, err := openMemory(v.run.process.pid(), v.memory)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer m.Close()
	to, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	if err != nil {
		t.Error(err)
		return ""
	}
	defer to.Close()
	from, err := os.Open(v.memory)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer from.Close()
	err = to.Truncate(v.record.Spec.MemoryMiB << 20)
	runs, cerr := m.copyOwn(to)
	if err = errors.Join(err, cerr, fillFrom(to, from, runs)); err != nil {
		t.Error(err)
	}
	return to.Name()
}

// TestCancelledTransfer: until the guest stands still, a caller that leaves ends
// the save, and the guest goes on.
func TestCancelledTransfer(t *testing.T) {
	b, _ := newBackend(t)
	b.blind = true
	dir := filepath.Join(t.TempDir(), "base")
	madeState(t, b, dir, func(r *stateRecord) { r.Saved.DiskSize = 1 << 30 })
	v, q := scriptedVM(t, b, dir)
	v.accel.name = "kvm"
	ctx, cancel := context.WithCancel(t.Context())
	q.sent = func() bool { cancel(); return false }
	saved := filepath.Join(t.TempDir(), "saved")
	if _, err := v.Save(ctx, saved, backend.SaveOptions{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("%v", err)
	}
	if _, err := os.Lstat(saved); err == nil {
		t.Error("something of it is left")
	}
	if q.paused || q.top != rootNode || len(q.nodes) != 1 || q.transfer != "cancelled" {
		t.Errorf("QEMU: %+v", q.nodes)
	}
	q.sent = nil
	if _, err := v.Save(t.Context(), saved, backend.SaveOptions{}); err != nil {
		t.Error(err)
	}
	f, err := os.Open(filepath.Join(saved, stateMemory))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, 2*ramPageSize)
	if _, err := io.ReadFull(f, got); err != nil || got[0] != 'a' || got[ramPageSize] != 'b' {
		t.Errorf("%q %q, %v", got[0], got[ramPageSize], err)
	}
}
