package qemu

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCopyMemory: what a process sees of a private mapping is what the copied
// image holds, whichever pages it wrote, wherever the file has holes.
func TestCopyMemory(t *testing.T) {
	page := os.Getpagesize()
	const pages = 600
	rnd := rand.New(rand.NewPCG(1, 2))
	for name, written := range map[string]func(int) bool{
		"none":   func(int) bool { return false },
		"all":    func(int) bool { return true },
		"first":  func(i int) bool { return i == 0 },
		"last":   func(i int) bool { return i == pages-1 },
		"others": func(i int) bool { return i%2 == 1 },
		"random": func(int) bool { return rnd.IntN(3) == 0 },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "base")
			base, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer base.Close()
			if err := base.Truncate(int64(pages * page)); err != nil {
				t.Fatal(err)
			}
			for i := 0; i < pages; i += 1 + rnd.IntN(40) { // the rest are holes
				b := bytes.Repeat([]byte{byte(i), 1}, page/2)
				if _, err := base.WriteAt(b, int64(i*page)); err != nil {
					t.Fatal(err)
				}
			}
			mem, err := unix.Mmap(int(base.Fd()), 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Munmap(mem)
			for i := range pages {
				switch {
				case written(i):
					copy(mem[i*page:], bytes.Repeat([]byte{byte(i), 2}, page/2))
				case i%3 == 0:
					_ = mem[i*page] // present, and the file's
				}
			}
			m, err := openMemory(os.Getpid(), path)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			to, err := os.Create(filepath.Join(dir, "image"))
			if err != nil {
				t.Fatal(err)
			}
			defer to.Close()
			if err := to.Truncate(int64(pages * page)); err != nil {
				t.Fatal(err)
			}
			runs, err := m.copyOwn(to)
			if err != nil {
				t.Fatal(err)
			}
			if err := fillFrom(to, base, runs); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(to.Name())
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, mem) {
				for i := range pages {
					if !bytes.Equal(got[i*page:(i+1)*page], mem[i*page:(i+1)*page]) {
						t.Fatalf("page %d differs", i)
					}
				}
			}
		})
	}
}

// TestMemoryOfAnotherFile: a process that does not map the file is no guest of
// ours.
func TestMemoryOfAnotherFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openMemory(os.Getpid(), path); err == nil {
		t.Error("a file that is not mapped was found")
	}
}

// TestDigestSeesDamage: of each byte, and of each hole that becomes data.
func TestDigestSeesDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const size = 8 << 20
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	for _, off := range []int64{0, 3 << 20, size - 4096} {
		if _, err := f.WriteAt(bytes.Repeat([]byte("data"), 1024), off); err != nil {
			t.Fatal(err)
		}
	}
	digest := func() string {
		t.Helper()
		d, err := digestFile(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := digest()
	if again := digest(); again != first {
		t.Fatalf("two digests of one file: %s, %s", first, again)
	}
	for _, off := range []int64{0, 4095, 3<<20 + 17, 5 << 20, size - 1} {
		var was [1]byte
		if _, err := f.ReadAt(was[:], off); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{was[0] ^ 0x10}, off); err != nil {
			t.Fatal(err)
		}
		if digest() == first {
			t.Errorf("a flipped bit at %d is not seen", off)
		}
		if _, err := f.WriteAt(was[:], off); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzParseMaps(f *testing.F) {
	f.Add("7f00-7f20 rw-p 00001000 fe:00 12 /a b\n7f20-7f30 r--s 0 fe:00 12\n")
	f.Add("7f20-7f00 rw-p 0 fe:00 12 /x")
	f.Fuzz(func(t *testing.T, s string) {
		maps, err := parseMaps(strings.NewReader(s), unix.Mkdev(0xfe, 0), 12)
		if err != nil {
			return
		}
		for _, m := range maps {
			if m.end <= m.start {
				t.Errorf("%+v", m)
			}
		}
	})
}
