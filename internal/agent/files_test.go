package agent_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandboxforge/internal/guest"
)

type tarEntry struct {
	tar.Header
	body string
}

func makeTar(t testing.TB, entries ...tarEntry) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, e := range entries {
		h := e.Header
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if h.Typeflag == tar.TypeReg || h.Typeflag == 0 {
			h.Size = int64(len(e.body))
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(tw, e.body)
	}
	tw.Close()
	return b.Bytes()
}

func TestPutGet(t *testing.T) {
	w := newWorld(t)
	root := filepath.Join(w.dir, "new", "root")
	when := time.Unix(1_700_000_000, 0)
	in := makeTar(t,
		tarEntry{Header: tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o750, ModTime: when}},
		tarEntry{Header: tar.Header{Name: "d/a", ModTime: when, Mode: 0o755}, body: "hello"},
		tarEntry{Header: tar.Header{Name: "b/c/d", ModTime: when}, body: ""},
		tarEntry{Header: tar.Header{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "d/a"}},
		tarEntry{Header: tar.Header{Name: "hard", Typeflag: tar.TypeLink, Linkname: "d/a"}},
	)
	res, err := w.client.PutTar(w.context(), guest.PutTar{Root: root}, bytes.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	if res.Files != 4 || res.Bytes != 5 || len(res.Skipped) != 0 || len(res.Entries) != 5 {
		t.Fatalf("%+v", res)
	}
	st, err := os.Stat(filepath.Join(root, "d/a"))
	if err != nil || st.Mode() != 0o755 || !st.ModTime().Equal(when) {
		t.Fatalf("%v %v", st, err)
	}
	if st, _ := os.Stat(filepath.Join(root, "d")); st.Mode().Perm() != 0o750 || !st.ModTime().Equal(when) {
		t.Fatalf("directory %v %v", st.Mode(), st.ModTime())
	}
	for _, e := range res.Entries {
		if e.Path == "d/a" {
			got, err := w.client.Stat(w.context(), filepath.Join(root, "d/a"), false)
			if err != nil || got.Inode != e.Inode || got.Size != 5 {
				t.Fatalf("%+v, stat %+v %v", e, got, err)
			}
		}
	}
	names, _ := getTar(t, w, guest.GetTar{Root: root})
	if diff := cmp.Diff([]string{"b/", "b/c/", "b/c/d", "d/", "d/a", "hard", "link"}, names); diff != "" {
		t.Fatal(diff)
	}
	names, skipped := getTar(t, w, guest.GetTar{Root: root, Paths: []string{"d", "missing"}, Exclude: []string{"a"}})
	if diff := cmp.Diff([]string{"d/"}, names); diff != "" || len(skipped) != 1 || !strings.HasPrefix(skipped[0], "missing: ") {
		t.Fatal(diff, skipped)
	}
	ts, err := w.client.GetTar(w.context(), guest.GetTar{Root: root, MaxBytes: 1000})
	if err == nil {
		_, err = io.ReadAll(ts)
		ts.Close()
	}
	if !errors.Is(err, guest.ErrTooLarge) {
		t.Fatalf("err = %v", err)
	}

	// Again, keeping what is there; and with removals.
	res, err = w.client.PutTar(w.context(), guest.PutTar{Root: root, KeepExisting: true, RemoveFirst: []string{"b/c/d", "b/c", "d", "none"}},
		bytes.NewReader(makeTar(t, tarEntry{Header: tar.Header{Name: "d/a"}, body: "other"}, tarEntry{Header: tar.Header{Name: "n"}, body: "x"})))
	if err != nil || res.Files != 1 || !slices.Equal(res.Skipped, []string{"d/a: exists, kept"}) {
		t.Fatalf("%+v %v", res, err)
	}
	if _, err := os.Stat(filepath.Join(root, "b/c")); !os.IsNotExist(err) {
		t.Fatal("not removed")
	}
	if b, _ := os.ReadFile(filepath.Join(root, "d/a")); string(b) != "hello" {
		t.Fatalf("%q", b)
	}
	checkNoTemps(t, root)
}

func checkNoTemps(t testing.TB, root string) {
	t.Helper()
	filepath.WalkDir(root, func(p string, _ os.DirEntry, _ error) error {
		if strings.Contains(p, ".sandboxforge-tmp-") {
			t.Errorf("left behind: %s", p)
		}
		return nil
	})
}

func getTar(t *testing.T, w *world, req guest.GetTar) (names, skipped []string) {
	t.Helper()
	ts, err := w.client.GetTar(w.context(), req)
	if err != nil {
		t.Fatal(err)
	}
	defer ts.Close()
	tr := tar.NewReader(ts)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if _, err := io.Copy(io.Discard, ts); err != nil {
		t.Fatal(err)
	}
	return names, ts.Skipped()
}

// TestHostileTar puts archives that try to leave the root.
func TestHostileTar(t *testing.T) {
	w := newWorld(t)
	outside := filepath.Join(w.dir, "outside")
	for _, c := range []struct {
		name    string
		entries []tarEntry
		skipped string // part of the first skipped line
	}{
		{"absolute", []tarEntry{{Header: tar.Header{Name: outside + "/x"}, body: "evil"}}, "not a name beneath the root"},
		{"dot dot", []tarEntry{{Header: tar.Header{Name: "../outside/x"}, body: "evil"}}, "not a name beneath the root"},
		{"dot dot inside", []tarEntry{{Header: tar.Header{Name: "a/../../outside/x"}, body: "evil"}}, "not a name beneath the root"},
		{"through a symlink", []tarEntry{
			{Header: tar.Header{Name: "s", Typeflag: tar.TypeSymlink, Linkname: outside}},
			{Header: tar.Header{Name: "s/x"}, body: "evil"},
		}, "a symlink, or"},
		{"directory through a symlink", []tarEntry{
			{Header: tar.Header{Name: "s", Typeflag: tar.TypeSymlink, Linkname: outside}},
			{Header: tar.Header{Name: "s/d/", Typeflag: tar.TypeDir, Mode: 0o777}},
		}, "a symlink, or"},
		{"directory on a symlink", []tarEntry{
			{Header: tar.Header{Name: "s", Typeflag: tar.TypeSymlink, Linkname: outside}},
			{Header: tar.Header{Name: "s/", Typeflag: tar.TypeDir, Mode: 0o777}},
		}, "a symlink, or"},
		{"symlink inside the root too", []tarEntry{
			{Header: tar.Header{Name: "real/", Typeflag: tar.TypeDir, Mode: 0o755}},
			{Header: tar.Header{Name: "s", Typeflag: tar.TypeSymlink, Linkname: "real"}},
			{Header: tar.Header{Name: "s/x"}, body: "evil"},
		}, "a symlink, or"},
		{"hard link out", []tarEntry{{Header: tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "../outside/secret"}}}, "hard link"},
		{"hard link absolute", []tarEntry{{Header: tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: outside + "/secret"}}}, "hard link"},
		{"hard link through a symlink", []tarEntry{
			{Header: tar.Header{Name: "s", Typeflag: tar.TypeSymlink, Linkname: outside + "/secret"}},
			{Header: tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "s"}},
		}, ""},
		{"device", []tarEntry{{Header: tar.Header{Name: "dev", Typeflag: tar.TypeBlock, Devmajor: 8}}}, "special file"},
		{"fifo", []tarEntry{{Header: tar.Header{Name: "fifo", Typeflag: tar.TypeFifo}}}, "special file"},
		{"setuid", []tarEntry{{Header: tar.Header{Name: "suid", Mode: 0o6755}, body: "#!/bin/sh"}}, "setuid"},
		{"long component", []tarEntry{{Header: tar.Header{Name: strings.Repeat("a", 300)}, body: "x"}}, "aaaa"},
		{"file where a directory is", []tarEntry{
			{Header: tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}}, {Header: tar.Header{Name: "d"}, body: "x"},
		}, "a directory is there"},
		{"directory where a file is", []tarEntry{
			{Header: tar.Header{Name: "f"}, body: "x"}, {Header: tar.Header{Name: "f/g"}, body: "y"},
		}, "no directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			os.RemoveAll(outside)
			os.Mkdir(outside, 0o755)
			os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600)
			root := filepath.Join(w.dir, "root")
			os.RemoveAll(root)
			entries := append(slices.Clone(c.entries), tarEntry{Header: tar.Header{Name: "last"}, body: "fine"})
			res, err := w.client.PutTar(w.context(), guest.PutTar{Root: root}, bytes.NewReader(makeTar(t, entries...)))
			if err != nil {
				t.Fatal(err)
			}
			if c.skipped != "" && (len(res.Skipped) == 0 || !strings.Contains(res.Skipped[0], c.skipped)) {
				t.Errorf("skipped %q", res.Skipped)
			}
			if b, _ := os.ReadFile(filepath.Join(root, "last")); string(b) != "fine" {
				t.Error("the good entry is missing")
			}
			var found []string
			filepath.WalkDir(outside, func(p string, d os.DirEntry, _ error) error {
				found = append(found, d.Name())
				return nil
			})
			if diff := cmp.Diff([]string{"outside", "secret"}, found); diff != "" {
				t.Error(diff)
			}
			if st, err := os.Stat(filepath.Join(outside, "secret")); err != nil || st.Sys().(*syscall.Stat_t).Nlink != 1 {
				t.Error("the secret was linked")
			}
			filepath.Walk(root, func(p string, st os.FileInfo, _ error) error {
				if st.Mode()&(os.ModeSetuid|os.ModeSetgid|os.ModeDevice|os.ModeNamedPipe) != 0 {
					t.Errorf("%s: %v", p, st.Mode())
				}
				return nil
			})
			checkNoTemps(t, root)
		})
	}
}

func TestDamagedTar(t *testing.T) {
	w := newWorld(t)
	root := filepath.Join(w.dir, "root")
	good := makeTar(t, tarEntry{Header: tar.Header{Name: "a"}, body: "first"}, tarEntry{Header: tar.Header{Name: "b"}, body: strings.Repeat("x", 5000)})
	huge := makeTar(t, tarEntry{Header: tar.Header{Name: "a"}, body: "x"})
	copy(huge[124:], "\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff") // a size of 2^63-1 in base 256
	sum := 0
	copy(huge[148:156], "        ")
	for _, b := range huge[:512] {
		sum += int(b)
	}
	copy(huge[148:], fmt.Sprintf("%06o\x00 ", sum))
	for name, c := range map[string]struct {
		in   []byte
		kind error
	}{
		"cut in a file":   {good[:2500], guest.ErrInvalid},
		"cut in a header": {good[:1300], guest.ErrInvalid},
		"no tar":          {bytes.Repeat([]byte("no tar "), 1000), guest.ErrInvalid},
		"huge":            {huge, guest.ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			os.RemoveAll(root)
			_, err := w.client.PutTar(w.context(), guest.PutTar{Root: root}, bytes.NewReader(c.in))
			if !errors.Is(err, c.kind) {
				t.Fatalf("err = %v", err)
			}
			if _, err := os.Stat(filepath.Join(root, "b")); !os.IsNotExist(err) {
				t.Fatal("half a file appeared")
			}
			checkNoTemps(t, root)
		})
	}
	// The caller's own reader fails.
	mine := errors.New("mine")
	_, err := w.client.PutTar(w.context(), guest.PutTar{Root: root}, io.MultiReader(bytes.NewReader(good[:600]), errReader{mine}))
	if !errors.Is(err, mine) {
		t.Fatalf("err = %v", err)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func tree(t *testing.T, w *world, req guest.TreeRequest) map[string]guest.Entry {
	t.Helper()
	out := map[string]guest.Entry{}
	for e, err := range w.client.Tree(w.context(), req) {
		if err != nil {
			t.Fatal(err)
		}
		out[e.Path] = e
	}
	return out
}

func TestTree(t *testing.T) {
	w := newWorld(t)
	root := filepath.Join(w.dir, "root")
	odd := "odd \xff\n\x01name"
	os.MkdirAll(filepath.Join(root, ".git/objects"), 0o755)
	os.MkdirAll(filepath.Join(root, "a/b/node_modules/x"), 0o755)
	os.WriteFile(filepath.Join(root, odd), []byte("odd"), 0o640)
	os.WriteFile(filepath.Join(root, "a/b/f"), []byte("hello"), 0o644)
	os.WriteFile(filepath.Join(root, "a/b/f.log"), nil, 0o644)
	os.Symlink("/etc", filepath.Join(root, "a/etc"))
	syscall.Mkfifo(filepath.Join(root, "fifo"), 0o644)
	got := tree(t, w, guest.TreeRequest{Root: root, Exclude: []string{"/.git", "node_modules/", "*.log"}, Hash: true})
	var names []string
	for n := range got {
		names = append(names, n)
	}
	slices.Sort(names)
	if diff := cmp.Diff([]string{"a", "a/b", "a/b/f", "a/etc", "fifo", odd}, names); diff != "" {
		t.Fatal(diff)
	}
	sum := sha256.Sum256([]byte("hello"))
	f := got["a/b/f"]
	if !bytes.Equal(f.SHA256, sum[:]) || f.Size != 5 || f.Type != guest.TypeRegular || f.Inode == 0 {
		t.Fatalf("%+v", f)
	}
	if l := got["a/etc"]; l.Type != guest.TypeSymlink || l.LinkTarget != "/etc" {
		t.Fatalf("%+v", l)
	}
	if o := got["fifo"]; o.Type != guest.TypeOther || o.Error != "" {
		t.Fatalf("%+v", o)
	}
	// A known hash is not made again, until the file changes.
	again := tree(t, w, guest.TreeRequest{Root: root, Hash: true, HashUnless: []guest.Entry{f}})
	if again["a/b/f"].SHA256 != nil || again[odd].SHA256 == nil {
		t.Fatalf("%+v", again["a/b/f"])
	}
	os.WriteFile(filepath.Join(root, "a/b/f"), []byte("hallo"), 0o644)
	os.Chtimes(filepath.Join(root, "a/b/f"), f.MTime, f.MTime)
	if again = tree(t, w, guest.TreeRequest{Root: root, Hash: true, HashUnless: []guest.Entry{f}}); again["a/b/f"].SHA256 == nil {
		t.Fatal("the same size and time hid a change")
	}
	var last error
	n := 0
	for _, err := range w.client.Tree(w.context(), guest.TreeRequest{Root: root, MaxEntries: 2}) {
		if err != nil {
			last = err
		} else {
			n++
		}
	}
	if n != 2 || !errors.Is(last, guest.ErrTruncated) {
		t.Fatalf("%d entries, %v", n, last)
	}
	for _, err := range w.client.Tree(w.context(), guest.TreeRequest{Root: filepath.Join(root, "none")}) {
		last = err
	}
	if !errors.Is(last, guest.ErrNotFound) {
		t.Fatal(last)
	}
}

func TestDeepTree(t *testing.T) {
	w := newWorld(t)
	root := filepath.Join(w.dir, "deep")
	os.Mkdir(root, 0o755)
	fd, err := syscall.Open(root, syscall.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 600 {
		syscall.Mkdirat(fd, "d", 0o755)
		next, err := syscall.Openat(fd, "d", syscall.O_DIRECTORY, 0)
		syscall.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	syscall.Close(fd)
	tooDeep := 0
	for e, err := range w.client.Tree(w.context(), guest.TreeRequest{Root: root}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Error != "" {
			tooDeep++
		}
	}
	if tooDeep != 1 {
		t.Fatalf("%d entries with an error", tooDeep)
	}
	exec := func() { os.RemoveAll(root) }
	t.Cleanup(exec)
}

func TestGlob(t *testing.T) {
	w := newWorld(t)
	root := filepath.Join(w.dir, "root [x]") // a base that looks like a pattern
	for _, f := range []string{"a.txt", "b.txt", "c.log", "d/e/f.txt", "d/e/.hidden.txt"} {
		os.MkdirAll(filepath.Dir(filepath.Join(root, f)), 0o755)
		os.WriteFile(filepath.Join(root, f), nil, 0o644)
	}
	os.Symlink(root, filepath.Join(root, "d/loop"))
	patterns := []string{"*.txt", "**/*.txt", "d/**", "none*", "a.txt", "../x", "[", "/etc/passw?"}
	m, err := w.client.Glob(w.context(), root, patterns, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, g := range m {
		for _, e := range g.Entries {
			got[g.Pattern] = append(got[g.Pattern], strings.TrimPrefix(e.Path, root+"/"))
		}
		if g.Error != "" {
			got[g.Pattern] = append(got[g.Pattern], "error")
		}
	}
	want := map[string][]string{
		"*.txt":       {"a.txt", "b.txt"},
		"**/*.txt":    {"a.txt", "b.txt", "d/e/.hidden.txt", "d/e/f.txt"},
		"d/**":        {"d/e", "d/e/.hidden.txt", "d/e/f.txt", "d/loop"},
		"a.txt":       {"a.txt"},
		"../x":        {"error"},
		"[":           {"error"},
		"/etc/passw?": {"/etc/passwd"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
	m, err = w.client.Glob(w.context(), root, []string{"**"}, 2)
	if err != nil || len(m[0].Entries) != 2 || m[0].Error == "" {
		t.Fatalf("%+v %v", m, err)
	}
}

func TestSmallFiles(t *testing.T) {
	w := newWorld(t)
	ctx := w.context()
	name := filepath.Join(w.dir, "f")
	target := filepath.Join(w.dir, "target")
	os.WriteFile(target, []byte("old"), 0o600)
	os.Symlink(target, name)
	if err := w.client.WriteFile(ctx, name, []byte("new"), 0o4600, ""); err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Lstat(name); st.Mode() != 0o600 {
		t.Fatalf("mode %v", st.Mode())
	}
	if b, _ := os.ReadFile(target); string(b) != "old" {
		t.Fatal("written through a symlink")
	}
	big := bytes.Repeat([]byte("0123456789"), 300_000)
	os.WriteFile(name, big, 0o644)
	if b, err := w.client.ReadFile(ctx, name, 1<<30); err != nil || !bytes.Equal(b, big) {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if b, err := w.client.ReadFile(ctx, "/proc/self/status", 1<<20); err != nil || len(b) == 0 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	fifo := filepath.Join(w.dir, "fifo")
	syscall.Mkfifo(fifo, 0o600)
	for _, c := range []struct {
		err  error
		kind error
	}{
		{second(w.client.ReadFile(ctx, name, 1000)), guest.ErrTooLarge},
		{second(w.client.ReadFile(ctx, fifo, 1000)), guest.ErrFailedPrecondition},
		{second(w.client.ReadFile(ctx, w.dir, 1000)), guest.ErrFailedPrecondition},
		{second(w.client.ReadFile(ctx, "relative", 1000)), guest.ErrInvalid},
		{second(w.client.ReadFile(ctx, "/no/such", 1000)), guest.ErrNotFound},
		{second(w.client.ReadFile(ctx, "/a\x00b", 1000)), guest.ErrInvalid},
		{second(w.client.Stat(ctx, "/no/such", true)), guest.ErrNotFound},
		{w.client.WriteFile(ctx, "/no/such/f", nil, 0, ""), guest.ErrNotFound},
		{w.client.WriteFile(ctx, w.dir, nil, 0, ""), guest.ErrFailedPrecondition},
		{w.client.WriteFile(ctx, name, make([]byte, 1<<20+1), 0, ""), guest.ErrInvalid},
		{second(w.client.Remove(ctx, w.dir, []string{"../x"}, true)), guest.ErrInvalid},
	} {
		if !errors.Is(c.err, c.kind) {
			t.Errorf("%v is not %v", c.err, c.kind)
		}
	}
	if writable, err := w.client.MakeDir(ctx, filepath.Join(w.dir, "x/y/z"), 0, ""); err != nil || !writable {
		t.Fatalf("%v %v", writable, err)
	}
	os.Symlink(target, filepath.Join(w.dir, "x/link"))
	res, err := w.client.Remove(ctx, w.dir, []string{"x/none", "x/link/deeper", "x", "f"}, false)
	if err != nil || !slices.Equal(res.Removed, []string{"f"}) || len(res.Failed) != 1 {
		t.Fatalf("%+v %v", res, err)
	}
	if res, err = w.client.Remove(ctx, w.dir, []string{"x"}, true); err != nil || len(res.Removed) != 1 {
		t.Fatalf("%+v %v", res, err)
	}
	if b, _ := os.ReadFile(target); string(b) != "old" {
		t.Fatal("removed through a symlink")
	}
}

func second[T any](_ T, err error) error { return err }
