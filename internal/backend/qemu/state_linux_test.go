package qemu

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sandboxforge/internal/backend"
)

// madeState writes a saved state that is right for this host, without a VM.
func madeState(t *testing.T, b *Backend, dir string, change func(*stateRecord)) {
	t.Helper()
	s := spec("source")
	img, err := b.find(s.Image, s.Arch)
	if err != nil {
		t.Fatal(err)
	}
	v, err := b.accelFor(t.Context(), img, nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := b.StateKey(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r := stateRecord{
		Version: stateFormat, Image: img, Accel: v.Accel, Boot: hostBootID(), Files: map[string]fileMark{},
		Saved: backend.SavedState{Key: key, Spec: s, CreatedAt: time.Now()},
	}
	for _, name := range []string{stateMemory, stateDevices, stateDisk} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("content of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
		mark, err := markOf(path)
		if err != nil {
			t.Fatal(err)
		}
		if mark.Digest, err = digestFile(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		r.Files[name] = mark
	}
	change(&r)
	if err := writeJSON(filepath.Join(dir, stateFile), r, false); err != nil {
		t.Fatal(err)
	}
}

// TestStateOfAnotherMachine: whatever a state depends on and is otherwise here
// makes it unfit, and never a wrong VM.
func TestStateOfAnotherMachine(t *testing.T) {
	b, _ := newBackend(t)
	for name, change := range map[string]func(*stateRecord){
		"right":                  func(*stateRecord) {},
		"another QEMU":           func(r *stateRecord) { r.Saved.Key = "0" + r.Saved.Key[1:] + "x" },
		"another accelerator":    func(r *stateRecord) { r.Accel = "kvm" },
		"another image":          func(r *stateRecord) { r.Image.Digest += "0" },
		"image is gone":          func(r *stateRecord) { r.Image.Root += ".gone" },
		"another size":           func(r *stateRecord) { r.Saved.Spec.MemoryMiB *= 2 },
		"disk below is gone":     func(r *stateRecord) { r.Saved.Parent = "/nonexistent" },
		"a later format":         func(r *stateRecord) { r.Version++ },
		"another file":           func(r *stateRecord) { m := r.Files[stateMemory]; m.Inode++; r.Files[stateMemory] = m },
		"a file that changed":    func(r *stateRecord) { m := r.Files[stateDisk]; m.MTime--; r.Files[stateDisk] = m },
		"a file of another size": func(r *stateRecord) { m := r.Files[stateDevices]; m.Size++; r.Files[stateDevices] = m },
		"damaged within":         func(r *stateRecord) { m := r.Files[stateMemory]; m.Digest = "sha256:00"; r.Files[stateMemory] = m },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			madeState(t, b, dir, change)
			_, err := b.CheckState(t.Context(), dir)
			if name == "right" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, backend.ErrStateUnfit) {
				t.Errorf("%v", err)
			}
			s := spec("vm-1")
			s.From = dir
			if err := b.Create(t.Context(), s); !errors.Is(err, backend.ErrStateUnfit) {
				t.Errorf("a VM was made of it: %v", err)
			}
			if vms, err := b.List(t.Context()); err != nil || len(vms) != 0 {
				t.Errorf("left: %v, %v", vms, err)
			}
		})
	}
}

// TestStateIsReadWholeOncePerBoot: damage that keeps size and time is found
// after a boot of the host, not on each use.
func TestStateIsReadWholeOncePerBoot(t *testing.T) {
	b, _ := newBackend(t)
	dir := filepath.Join(t.TempDir(), "state")
	madeState(t, b, dir, func(*stateRecord) {})
	if _, err := b.CheckState(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, stateMemory)
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{'X'}, 3); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := os.Chtimes(path, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.CheckState(t.Context(), dir); err != nil {
		t.Errorf("in the same boot: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, verifiedFile), []byte("another boot"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.CheckState(t.Context(), dir); !errors.Is(err, backend.ErrStateUnfit) {
		t.Errorf("after a boot: %v", err)
	}
}

// TestUnsettledStates: what may not have been on the disk when the host went
// down is not used afterwards, and what was settled is, with its damage found.
func TestUnsettledStates(t *testing.T) {
	b, _ := newBackend(t)
	tmp := t.TempDir()
	base, dir := filepath.Join(tmp, "base"), filepath.Join(tmp, "state")
	madeState(t, b, base, func(*stateRecord) {})
	madeState(t, b, dir, func(r *stateRecord) {
		r.Saved.Parent = base
		for name, m := range r.Files {
			m.Digest = ""
			r.Files[name] = m
		}
	})
	if err := addUser(base, dir, needsDisk); err != nil {
		t.Fatal(err)
	}
	boot := func() {
		t.Helper()
		r, err := readState(dir)
		if err != nil {
			t.Fatal(err)
		}
		r.Boot, r.Saved.Dir = "another boot", ""
		if err := writeJSON(filepath.Join(dir, stateFile), r, false); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, verifiedFile), []byte("another boot"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.CheckState(t.Context(), dir); err != nil {
		t.Fatalf("in the boot of the save: %v", err)
	}
	before, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		t.Fatal(err)
	}
	boot()
	if _, err := b.CheckState(t.Context(), dir); !errors.Is(err, backend.ErrStateUnfit) {
		t.Errorf("after a boot, not settled: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, stateFile), before, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.SettleState(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
	}
	boot()
	if st, err := b.CheckState(t.Context(), dir); err != nil || st.Parent != base {
		t.Errorf("after a boot, settled: %+v, %v", st, err)
	}
	boot()
	path := filepath.Join(dir, stateMemory)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte{'X'}, 3)
	if err = errors.Join(err, f.Close(), os.Chtimes(path, info.ModTime(), info.ModTime())); err != nil {
		t.Fatal(err)
	}
	if _, err := b.CheckState(t.Context(), dir); !errors.Is(err, backend.ErrStateUnfit) {
		t.Errorf("damaged, after a boot: %v", err)
	}

	if err := os.Remove(filepath.Join(base, stateDisk)); err != nil {
		t.Fatal(err)
	}
	if err := b.SettleState(t.Context(), dir); err == nil {
		t.Error("a state whose disk lies on nothing was settled")
	}
	if err := b.SettleState(t.Context(), filepath.Join(tmp, "nobody")); !errors.Is(err, backend.ErrStateUnfit) {
		t.Errorf("a missing state: %v", err)
	}
}
