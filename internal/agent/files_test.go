package agent_test

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

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
	)
	res, err := w.client.PutTar(w.context(), guest.PutTar{Root: root}, bytes.NewReader(in))
	if err != nil {
		t.Fatal(err)
	}
	if res.Files != 3 || res.Bytes != 5 || len(res.Skipped) != 0 || len(res.Entries) != 4 {
		t.Fatalf("%+v", res)
	}
	st, err := os.Stat(filepath.Join(root, "d/a"))
	if err != nil || st.Mode() != 0o755 || !st.ModTime().Equal(when) {
		t.Fatalf("%v %v", st, err)
	}
	if st, _ := os.Stat(filepath.Join(root, "d")); st.Mode().Perm() != 0o750 || !st.ModTime().Equal(when) {
		t.Fatalf("directory %v %v", st.Mode(), st.ModTime())
	}
	ts, err := w.client.GetTar(w.context(), guest.GetTar{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	defer ts.Close()
	tr := tar.NewReader(ts)
	var names []string
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
	if got := len(names); got != 6 {
		t.Fatalf("%q", names)
	}
}
