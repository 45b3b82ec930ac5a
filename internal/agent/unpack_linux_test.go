package agent

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sandboxforge/internal/guest/guestv1"
)

// FuzzUnpack unpacks whatever comes; nothing may appear outside the root, and
// no temporary file may stay.
func FuzzUnpack(f *testing.F) {
	add := func(headers ...tar.Header) {
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		for _, h := range headers {
			h.Mode = 0o644
			if h.Typeflag == 0 {
				h.Size = 1
			}
			tw.WriteHeader(&h)
			if h.Size == 1 {
				tw.Write([]byte("x"))
			}
		}
		tw.Close()
		f.Add(b.Bytes())
	}
	add(tar.Header{Name: "a/b"})
	add(tar.Header{Name: "s", Typeflag: tar.TypeSymlink, Linkname: ".."}, tar.Header{Name: "s/x"})
	add(tar.Header{Name: "../x"}, tar.Header{Name: "h", Typeflag: tar.TypeLink, Linkname: "a"})
	add(tar.Header{Name: "d/", Typeflag: tar.TypeDir}, tar.Header{Name: "d/\xff"}, tar.Header{Name: strings.Repeat("a/", 100) + "x"})
	f.Fuzz(func(t *testing.T, in []byte) {
		top := t.TempDir()
		root := filepath.Join(top, "root")
		os.Mkdir(root, 0o755)
		tree, err := openTree(root)
		if err != nil {
			t.Fatal(err)
		}
		defer tree.close()
		u := &unpacker{ctx: t.Context(), t: tree, o: owner{-1, -1}, parent: -1, out: &guestv1.PutTarResponse{}}
		defer u.close()
		u.unpack(bytes.NewReader(in)) //nolint:errcheck // any answer will do
		entries, _ := os.ReadDir(top)
		for _, e := range entries {
			if e.Name() != "root" {
				t.Fatalf("%q appeared outside", e.Name())
			}
		}
		filepath.WalkDir(root, func(p string, _ os.DirEntry, _ error) error {
			if strings.Contains(p, tempPrefix) {
				t.Errorf("left behind: %s", p)
			}
			return nil
		})
	})
}
