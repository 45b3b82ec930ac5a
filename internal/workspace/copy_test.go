//go:build unix

package workspace

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/hostpath"
)

func (p *pair) at(rel string) hostpath.Location { return hostpath.Location{Root: p.host, Rel: rel} }

func TestCopyToFollowsCpRules(t *testing.T) {
	for _, c := range []struct {
		name, local, remote   string
		localIsDir, remoteDir bool
		want                  []string // in the guest, below /workspace
		code                  fault.Code
	}{
		{"file to new name", "f", "/workspace/new/name", false, false, []string{"have", "have/old", "new", "new/name"}, ""},
		{"file into directory", "f", "/workspace/have", false, false, []string{"have", "have/f", "have/old"}, ""},
		{"file over file", "f", "/workspace/have/old", false, false, []string{"have", "have/old"}, ""},
		{"file to a directory that is made", "f", "/workspace/new", false, true, []string{"have", "have/old", "new", "new/f"}, ""},
		{"tree to new name", "d", "/workspace/new", false, false, []string{"have", "have/old", "new", "new/sub", "new/sub/x", "new/y"}, ""},
		{"tree into directory", "d", "/workspace/have", true, false, []string{"have", "have/d", "have/d/sub", "have/d/sub/x", "have/d/y", "have/old"}, ""},
		{"tree over file", "d", "/workspace/have/old", false, false, nil, fault.InvalidArgument},
		{"file with a slash", "f", "/workspace/x", true, false, nil, fault.InvalidArgument},
		{"missing", "nope", "/workspace/x", false, false, nil, fault.InvalidArgument},
		{"symlink", "l", "/workspace/x", false, false, nil, fault.PathNotAllowed},
		{"through a symlink", "ld/y", "/workspace/x", false, false, nil, fault.PathNotAllowed},
		{"relative remote", "f", "workspace", false, false, nil, fault.InvalidArgument},
		{"NUL remote", "f", "/w\x00", false, false, nil, fault.InvalidArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t)
			write(t, p.host, "f", "F")
			write(t, p.host, "d/sub/x", "X")
			write(t, p.host, "d/y", "Y")
			os.Symlink("f", filepath.Join(p.host, "l"))
			os.Symlink("d", filepath.Join(p.host, "ld"))
			write(t, p.guest, "have/old", "O")
			r, err := CopyTo(context.Background(), CopyRequest{Guest: p.g, Local: p.at(c.local), Remote: c.remote, LocalIsDir: c.localIsDir, RemoteIsDir: c.remoteDir})
			if fault.CodeOf(err) != c.code {
				t.Fatalf("%v", err)
			}
			if err != nil {
				return
			}
			if d := cmp.Diff(c.want, sortedKeys(readTree(p.guest))); d != "" {
				t.Error(d)
			}
			if r.Status != "ok" || r.Files == 0 || r.Bytes != int64(r.Files) {
				t.Errorf("%+v", r)
			}
			if _, err := os.Stat(p.g.real(r.RemotePath)); err != nil {
				t.Errorf("remote_path is not where it went: %+v", r)
			}
		})
	}
}

func TestCopyFromFollowsCpRules(t *testing.T) {
	for _, c := range []struct {
		name, local, remote   string
		localIsDir, remoteDir bool
		want                  []string
		code                  fault.Code
	}{
		{"file to new name", "new/name", "/workspace/f", false, false, []string{"have", "have/old", "new", "new/name"}, ""},
		{"file into directory", "have", "/workspace/f", false, false, []string{"have", "have/f", "have/old"}, ""},
		{"file over file", "have/old", "/workspace/f", false, false, []string{"have", "have/old"}, ""},
		{"file to a directory that is made", "new", "/workspace/f", true, false, []string{"have", "have/old", "new", "new/f"}, ""},
		{"tree to new name", "new", "/workspace/d", false, false, []string{"have", "have/old", "new", "new/e", "new/sub", "new/sub/x"}, ""},
		{"tree into the root", ".", "/workspace/d", false, true, []string{"d", "d/e", "d/sub", "d/sub/x", "have", "have/old"}, ""},
		{"tree over file", "have/old", "/workspace/d", false, false, nil, fault.InvalidArgument},
		{"file with a slash", "x", "/workspace/f", false, true, nil, fault.InvalidArgument},
		{"missing", "x", "/workspace/nope", false, false, nil, fault.InvalidArgument},
		{"to a trusted place", ".git/hooks/pre-commit", "/workspace/f", false, false, nil, fault.PathNotAllowed},
		{"named like a trusted place", "have", "/workspace/.envrc", false, false, nil, fault.PathNotAllowed},
		{"over a symlink", "l", "/workspace/f", false, false, nil, fault.PathNotAllowed},
		{"through a symlink", "ld/z", "/workspace/f", false, false, nil, fault.PathNotAllowed},
		{"a guest's symlink", "x", "/workspace/gl", false, false, nil, fault.InvalidArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t)
			write(t, p.host, "have/old", "O")
			write(t, p.guest, "f", "F")
			write(t, p.guest, ".envrc", "F")
			write(t, p.guest, "d/sub/x", "X")
			os.Mkdir(filepath.Join(p.guest, "d/e"), 0o755)
			os.Symlink("f", filepath.Join(p.guest, "gl"))
			if strings.HasSuffix(c.name, "symlink") {
				os.Symlink("have/old", filepath.Join(p.host, "l"))
				os.Symlink("have", filepath.Join(p.host, "ld"))
			}
			before := readTree(p.host)
			r, err := CopyFrom(context.Background(), CopyRequest{Guest: p.g, Local: p.at(c.local), Remote: c.remote, LocalIsDir: c.localIsDir, RemoteIsDir: c.remoteDir})
			if fault.CodeOf(err) != c.code {
				t.Fatalf("%v", err)
			}
			if err != nil {
				if d := cmp.Diff(before, readTree(p.host)); d != "" {
					t.Error(d)
				}
				return
			}
			if d := cmp.Diff(c.want, sortedKeys(readTree(p.host))); d != "" {
				t.Error(d)
			}
			if _, err := os.Stat(r.LocalPath); err != nil || r.Status != "ok" || r.Files != 1 || r.Bytes != 1 {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestCollect(t *testing.T) {
	p := newPair(t)
	write(t, p.guest, "out/a.txt", "hello")
	write(t, p.guest, "out/b.log", "12345678")
	write(t, p.guest, "rep/sub/r.html", "R")
	write(t, p.guest, "other/a.txt", "second")
	write(t, p.guest, "rep/.vscode/x", "evil")
	os.Symlink("a.txt", filepath.Join(p.guest, "out/l"))
	now := func() time.Time { return time.Unix(1_700_000_000, 0) }
	req := CollectRequest{Guest: p.g, RemotePaths: []string{"/workspace/out/*", "rep", "/workspace/other/a.txt", "/workspace/nope", "/workspace/out/a.txt"}, Base: "/workspace",
		Local: p.at("artifacts"), Now: now}
	r, err := Collect(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(p.host, "artifacts")
	want := map[string]string{"a.txt": "hello", "a-2.txt": "second", "b.log": "12345678", "rep": "dir", "rep/sub": "dir", "rep/sub/r.html": "R"}
	if d := cmp.Diff(want, without(readTree(dir), CollectionManifest)); d != "" {
		t.Error(d)
	}
	var failed []string
	for _, f := range r.Failed {
		failed = append(failed, f.RemotePath)
	}
	if d := cmp.Diff([]string{"/workspace/nope", "/workspace/out/l", "/workspace/rep/.vscode/x"}, failed); d != "" {
		t.Errorf("%s %+v", d, r.Failed)
	}
	if a := r.Artifacts[1]; a.RemotePath != "/workspace/out/a.txt" || a.SHA256 != "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" || a.Bytes != 5 || a.Mode != "0644" || a.LocalPath != dir+"/a.txt" {
		t.Errorf("%+v", a)
	}
	var m struct {
		CollectedAt string `json:"collected_at"`
		CollectResult
	}
	data, _ := os.ReadFile(r.ManifestPath)
	if err := json.Unmarshal(data, &m); err != nil || m.CollectedAt != "2023-11-14T22:13:20Z" || len(m.Artifacts) != 4 {
		t.Errorf("%v %+v", err, m)
	}
	// A second one goes beside the first.
	write(t, p.guest, "out/a.txt", "other")
	before := readTree(dir)
	again, err := Collect(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	if again.LocalDir != filepath.Join(dir, "collection-2") {
		t.Errorf("%s", again.LocalDir)
	}
	if d := cmp.Diff(before, without(readTree(dir), "collection-2")); d != "" {
		t.Errorf("the first collection changed: %s", d)
	}
	// A bound leaves out what would pass it, not the rest.
	req.MaxTotalBytes, req.RemotePaths = 7, []string{"/workspace/out/*"}
	if r, err = Collect(context.Background(), req); err != nil || len(r.Artifacts) != 1 || len(r.Failed) != 2 {
		t.Errorf("%v %+v", err, r)
	}
}

// liar answers with any tar stream.
type liar struct {
	*dirGuest
	stream []byte
}

func (l *liar) GetTar(context.Context, GetTar) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.stream)), nil
}

func tarOf(entries ...tar.Header) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		w.WriteHeader(&h)
		if h.Typeflag == tar.TypeReg {
			w.Write(bytes.Repeat([]byte("x"), int(h.Size)))
		}
	}
	w.Close()
	return b.Bytes()
}

func TestALyingGuestWritesNothingElse(t *testing.T) {
	reg := func(name string, size int64) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o6777}
	}
	for name, stream := range map[string][]byte{
		"escape":            tarOf(reg("../evil", 1)),
		"absolute":          tarOf(reg("/evil", 1)),
		"not asked for":     tarOf(reg("other", 1)),
		"link":              tarOf(tar.Header{Typeflag: tar.TypeSymlink, Name: "f", Linkname: "/etc/passwd"}),
		"hard link":         tarOf(tar.Header{Typeflag: tar.TypeLink, Name: "f", Linkname: "/etc/passwd"}),
		"device":            tarOf(tar.Header{Typeflag: tar.TypeChar, Name: "f"}),
		"larger":            tarOf(reg("f", 100_000)),
		"smaller":           tarOf(reg("f", 0)),
		"other content":     tarOf(reg("f", 1)),
		"twice":             tarOf(reg("f", 1), reg("f", 1)),
		"nothing":           tarOf(),
		"no tar":            []byte("hello"),
		"cut off":           tarOf(reg("f", 1))[:512],
		"directory instead": tarOf(tar.Header{Typeflag: tar.TypeDir, Name: "f/"}),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			write(t, p.host, "f", "1")
			p.up()
			write(t, p.guest, "f", "G")
			p.req.Guest = &liar{p.g, stream}
			r, err := Down(context.Background(), p.req, DownOptions{})
			if err == nil && r.Status == "ok" {
				t.Errorf("it is believed: %+v", r)
			}
			p.wantHost(map[string]string{"f": "1"})
		})
	}
}

// boaster announces files whose sizes together pass every integer.
type boaster struct {
	*dirGuest
	t *testing.T
}

func (b boaster) Tree(ctx context.Context, r TreeRequest) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for e, err := range b.dirGuest.Tree(ctx, r) {
			if e.Type == TypeRegular {
				e.Size = 1 << 62
			}
			if !yield(e, err) {
				return
			}
		}
	}
}

func (b boaster) GetTar(context.Context, GetTar) (io.ReadCloser, error) {
	b.t.Error("files were asked for that no disk holds")
	return nil, io.ErrUnexpectedEOF
}

func TestSizesThatNoDiskHolds(t *testing.T) {
	p := newPair(t)
	p.up()
	for _, name := range []string{"a", "b", "c", "d/e"} {
		write(t, p.guest, name, name)
	}
	p.req.Guest = boaster{p.g, t}
	if _, err := Down(context.Background(), p.req, DownOptions{}); !fault.Is(err, fault.InsufficientDisk) {
		t.Errorf("down: %v", err)
	}
	root, err := hostpath.OpenRoot(p.host)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	w := &hostWriter{root: root, base: ".", refused: &[]Problem{}, skipped: &[]Problem{}}
	tree, names := Tree{}, map[string]string{}
	for _, name := range []string{"a", "b", "c"} {
		tree[name], names[name] = &Node{Kind: File, Stamp: Stamp{Size: 1 << 62}}, name
	}
	if err := w.fetch(context.Background(), p.req.Guest, "/", names, tree, nil); !fault.Is(err, fault.InsufficientDisk) {
		t.Errorf("copy and collect: %v", err)
	}
	p.wantHost(map[string]string{})
}

func FuzzReceive(f *testing.F) {
	f.Add(tarOf(tar.Header{Typeflag: tar.TypeReg, Name: "f", Size: 3}))
	f.Add(tarOf(tar.Header{Typeflag: tar.TypeReg, Name: "d/g", Size: 1}, tar.Header{Typeflag: tar.TypeDir, Name: "d/"}))
	f.Add(tarOf(tar.Header{Typeflag: tar.TypeSymlink, Name: "f", Linkname: "x"}))
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		nodes := Tree{"f": {Kind: File, Stamp: Stamp{Size: 3}}, "d/g": {Kind: File, Stamp: Stamp{Size: 1}}}
		seen := map[string]int{}
		failed, err := receive(context.Background(), &liar{nil, stream}, "/", []string{"f", "d/g"}, func(p string) *Node { return nodes[p] },
			func(p string, n *Node, r io.Reader) error {
				if nodes[p] == nil {
					t.Fatalf("%q was not asked for", p)
				}
				seen[p]++
				data, err := io.ReadAll(r)
				if int64(len(data)) > n.Stamp.Size {
					t.Fatalf("%d bytes of %q", len(data), p)
				}
				if err != nil {
					return &fileError{"torn"}
				}
				return nil
			})
		for p, n := range seen {
			if n > 1 {
				t.Errorf("%q came %d times", p, n)
			}
		}
		if err == nil && len(seen)+len(failed) < 2 {
			t.Errorf("a file is neither there nor failed: %v %v", seen, failed)
		}
	})
}

func FuzzManifest(f *testing.F) {
	f.Add(encodeManifest(map[string]*Ancestor{}))
	f.Add(encodeManifest(map[string]*Ancestor{"a": {Kind: File, Size: 3, Put: true, Host: Stamp{1, 2, 3, 4}}, "d": {Kind: Dir}, "l": {Kind: Symlink, Target: "a", Pending: true}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		// The checksum hides everything behind it: give the bytes a good one.
		for _, d := range [][]byte{data, checksummed(data)} {
			m, err := decodeManifest(d)
			if err != nil {
				if !errors.Is(err, errManifest) {
					t.Fatal(err)
				}
				continue
			}
			again, err := decodeManifest(encodeManifest(m))
			if err != nil || !cmp.Equal(m, again) {
				t.Errorf("%v: %s", err, cmp.Diff(m, again))
			}
			for p := range m {
				if hostpath.CheckRel(p) != nil {
					t.Errorf("path %q", p)
				}
			}
		}
	})
}
