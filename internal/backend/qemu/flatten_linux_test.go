package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/backend"
)

// guestOf talks to the agent of a VM, also after saves, which cost the stream.
type guestOf struct {
	t *testing.T
	v *vm
}

func (g guestOf) run(command string) string {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 2*time.Minute)
	defer cancel()
	stream, err := g.v.DialAgent(ctx)
	if err != nil {
		g.t.Fatal(err)
	}
	defer stream.Close()
	out, err := inGuest(ctx, stream, command)
	if err != nil {
		g.t.Fatal(err)
	}
	return out
}

func (g guestOf) save(dir string) backend.SavedState {
	g.t.Helper()
	st, err := g.v.Save(g.t.Context(), dir, backend.SaveOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	return st
}

// depth is how many disks QEMU has below the guest's, and wants vm.json to say so.
func (g guestOf) depth() int {
	g.t.Helper()
	nodes, err := g.v.blockNodes(g.t.Context())
	if err != nil {
		g.t.Fatal(err)
	}
	r, err := readVM(g.v.b.dir(g.v.name), g.v.name)
	if err != nil {
		g.t.Fatal(err)
	}
	depth := nodes[g.v.node].Depth
	if r.Layers+1 != depth { // and the image's
		g.t.Errorf("vm.json says that %d saved disks lie below, QEMU %d", r.Layers, depth-1)
	}
	return depth
}

// flattened waits for the flattening that is under way or waits to begin.
func (g guestOf) flattened() {
	g.t.Helper()
	g.v.flat.mu.Lock()
	done := g.v.flat.done
	g.v.flat.mu.Unlock()
	if done == nil {
		g.t.Fatal("nothing is being flattened")
	}
	select {
	case <-done:
	case <-time.After(3 * time.Minute):
		g.t.Fatal("flattening takes for ever")
	}
}

// checkDisk fails unless qemu-img finds nothing wrong with a VM's disk.
func checkDisk(t *testing.T, b *Backend, name string) {
	t.Helper()
	r, err := readVM(b.dir(name), name)
	if err != nil {
		t.Fatal(err)
	}
	out, err := b.runTool(t.Context(), b.qemuImg(), "check", "-q", "-f", "qcow2", "--", r.disk(b.dir(name)))
	if err != nil {
		t.Errorf("the disk of %s: %v %s", name, err, out)
	}
}

// TestFortySaves: a VM can be saved as often as one likes, with the disks below
// it bounded, also when no time is left between the saves; what it and the kept
// states hold stays; and what nobody needs goes.
func TestFortySaves(t *testing.T) {
	const saves, kept = 40, 20
	b, _ := newBackend(t)
	b.limits.flattenDelay = time.Hour // only what a save needs is flattened
	if err := b.Create(t.Context(), spec("vm-1")); err != nil {
		t.Fatal(err)
	}
	v, _ := bootVM(t, b, "vm-1")
	g := guestOf{t, v}
	g.run("mkdir /var/many && head -c 8388608 /dev/urandom > /var/many/bulk && sha256sum /var/many/bulk > /var/many/sum && sync")
	tmp := t.TempDir()
	deepest := 0
	for i := 1; i <= saves; i++ {
		g.run(fmt.Sprintf("echo %d > /var/many/%d && echo %d > /var/many/last && sync", i, i, i))
		dir := filepath.Join(tmp, fmt.Sprint(i))
		g.save(dir)
		if i != kept {
			if err := b.RemoveState(t.Context(), dir); err != nil {
				t.Fatal(err)
			}
		}
		deepest = max(deepest, g.depth())
	}
	if deepest > maxLayers+1 {
		t.Errorf("up to %d disks lay below the guest's", deepest)
	}
	t.Logf("up to %d disks lay below the guest's, at the end %d", deepest, g.depth())

	// Left alone, the chain becomes short.
	b.limits.flattenDelay = 0
	g.save(filepath.Join(tmp, "last"))
	if err := b.RemoveState(t.Context(), filepath.Join(tmp, "last")); err != nil {
		t.Fatal(err)
	}
	if g.depth() > flattenLayers {
		g.flattened()
	}
	if d := g.depth(); d > flattenLayers {
		t.Errorf("%d disks lie below the guest's", d)
	}
	intact := func(g guestOf, upTo int) {
		t.Helper()
		got := g.run("sync; echo 3 > /proc/sys/vm/drop_caches; cd /var/many && sha256sum -c sum >/dev/null && cat last && ls | grep -c '^[0-9]*$' && cat $(ls | grep '^[0-9]*$' | sort -n) | tr '\\n' ' '")
		var want strings.Builder
		fmt.Fprintf(&want, "%d\n%d\n", upTo, upTo)
		for i := 1; i <= upTo; i++ {
			fmt.Fprintf(&want, "%d ", i)
		}
		if got != strings.TrimSpace(want.String()) {
			t.Errorf("%s has %q", g.v.name, got)
		}
	}
	intact(g, saves)

	s := spec("vm-2")
	s.From = filepath.Join(tmp, fmt.Sprint(kept))
	if err := b.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	m, err := b.Start(t.Context(), "vm-2", backend.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Stop(context.Background(), 0) })
	intact(guestOf{t, m.(*vm)}, kept)

	// Another life of the VM finds its disk.
	if err := v.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	checkDisk(t, b, "vm-1")
	v, _ = bootVM(t, b, "vm-1")
	intact(guestOf{t, v}, saves)
	if err := v.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	checkDisk(t, b, "vm-1")

	for _, name := range []string{"vm-1", "vm-2"} {
		if err := b.Delete(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.RemoveState(t.Context(), s.From); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestFlatteningIsInNobodysWay: a save and the end of the VM do not wait for a
// flattening that is under way, and it does not touch what others need.
func TestFlatteningIsInNobodysWay(t *testing.T) {
	b, _ := newBackend(t)
	b.limits.flattenDelay = 0
	b.limits.flattenSpeed = 64 << 10 // for ever
	if err := b.Create(t.Context(), spec("vm-1")); err != nil {
		t.Fatal(err)
	}
	v, _ := bootVM(t, b, "vm-1")
	g := guestOf{t, v}
	tmp := t.TempDir()
	var dirs []string
	next := func() string {
		dirs = append(dirs, filepath.Join(tmp, fmt.Sprint(len(dirs))))
		return dirs[len(dirs)-1]
	}
	for range flattenLayers {
		g.run("head -c 2097152 /dev/urandom >> /var/bulk && sha256sum /var/bulk > /var/sum && sync")
		g.save(next())
	}
	working := func() {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for {
			var jobs []struct {
				ID string `json:"id"`
			}
			if err := v.control.Do(t.Context(), "query-jobs", nil, &jobs); err != nil {
				t.Fatal(err)
			}
			if len(jobs) == 1 && jobs[0].ID == flattenJob {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("nothing is being flattened")
			}
		}
	}
	working()
	g.save(next())
	if d := g.depth(); d != flattenLayers+2 {
		t.Errorf("%d disks lie below the guest's", d)
	}
	for _, dir := range dirs {
		if _, err := b.CheckState(t.Context(), dir); err != nil {
			t.Error(err)
		}
	}

	// A child of the deepest state is flattened in its own disk only.
	s := spec("vm-2")
	s.From = dirs[len(dirs)-1]
	if err := b.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	b.limits.flattenSpeed = 0
	m, err := b.Start(t.Context(), "vm-2", backend.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Stop(context.Background(), 0) })
	child := guestOf{t, m.(*vm)}
	child.flattened()
	if d := child.depth(); d != 2 {
		t.Errorf("%d disks lie below the child's", d)
	}
	if got := child.run("echo 3 > /proc/sys/vm/drop_caches; sha256sum -c /var/sum && echo whole"); !strings.HasSuffix(got, "whole") {
		t.Errorf("the child: %q", got)
	}
	var used *backend.InUseError
	if err := b.RemoveState(t.Context(), s.From); !errors.As(err, &used) {
		t.Errorf("the state that the child began in: %v", err)
	}
	if err := b.Delete(t.Context(), "vm-2"); err != nil {
		t.Fatal(err)
	}

	working()
	if err := v.Stop(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	checkDisk(t, b, "vm-1")
	b.limits.flattenSpeed = 64 << 10
	v, _ = bootVM(t, b, "vm-1")
	if got := (guestOf{t, v}).run("sha256sum -c /var/sum && echo whole"); !strings.HasSuffix(got, "whole") {
		t.Errorf("after another start: %q", got)
	}
	working()
	if err := b.Delete(t.Context(), "vm-1"); err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if err := b.RemoveState(t.Context(), dir); err != nil {
			t.Error(err)
		}
	}
	for _, dir := range dirs {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}
