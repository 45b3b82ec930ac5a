package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"sandboxforge/internal/fault"
)

// member is one entry of an archive that a test makes.
type member struct{ name, body, link string }

func archiveOf(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: m.name, Mode: 0o644, Size: int64(len(m.body))}
		if m.link != "" {
			h = &tar.Header{Typeflag: tar.TypeSymlink, Name: m.name, Linkname: m.link}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, m.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func blob(body string) member {
	sum := sha256.Sum256([]byte(body))
	return member{name: "blobs/sha256/" + hex.EncodeToString(sum[:]), body: body}
}

func digestIn(m member) string { return "sha256:" + filepath.Base(m.name) }

const imageConfig = `{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:1","sha256:2"]}}`

func TestPrepareLoad(t *testing.T) {
	saved := func(tags string, more ...member) []byte {
		return archiveOf(t, append([]member{
			{name: "manifest.json", body: `[{"Config":"c.json","RepoTags":[` + tags + `],"Layers":["a/layer.tar","./b/layer.tar"]}]`},
			{name: "c.json", body: imageConfig}, {name: "a/layer.tar", body: "one"}, {name: "unwanted", body: "x"},
		}, more...)...)
	}
	whole := saved(`"other:1"`, member{name: "b/layer.tar", body: "two"})

	conf, l1, l2 := blob(imageConfig), blob("one"), blob("two")
	man := blob(`{"config":{"digest":"` + digestIn(conf) + `"},"layers":[{"digest":"` + digestIn(l1) + `"},{"digest":"` + digestIn(l2) + `"}]}`)
	foreign := blob("{}")
	platforms := blob(`{"manifests":[{"digest":"` + digestIn(foreign) + `","platform":{"os":"linux","architecture":"arm64"}},{"digest":"` + digestIn(man) + `","platform":{"os":"linux","architecture":"amd64"}}]}`)
	layout := func(index string) []byte {
		return archiveOf(t, member{name: "oci-layout", body: `{"imageLayoutVersion":"1.0.0"}`}, member{name: "index.json", body: index}, conf, l1, l2, man, platforms)
	}
	// forged is a whole layout, but for one blob that has another content of the
	// same meaning.
	forged := func(name string) []byte {
		all := []member{{name: "oci-layout", body: `{"imageLayoutVersion":"1.0.0"}`}, {name: "index.json", body: `{"manifests":[{"digest":"` + digestIn(man) + `"}]}`}}
		for _, m := range []member{conf, l1, l2, man} {
			if m.name == name {
				m.body += " "
			}
			all = append(all, m)
		}
		return archiveOf(t, all...)
	}
	gz := func(b []byte) []byte {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		w.Write(b) //nolint:errcheck // a buffer
		w.Close()
		return out.Bytes()
	}
	zs := func(b []byte) []byte {
		e, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		return e.EncodeAll(b, nil)
	}
	layers := []string{"a/layer.tar", "b/layer.tar"}
	blobs := []string{l1.name, l2.name}
	for name, c := range map[string]struct {
		data   []byte
		layers []string // nil: refused
		why    string
	}{
		"docker save":               {whole, layers, ""},
		"gzip":                      {gz(whole), layers, ""},
		"zstd":                      {zs(whole), layers, ""},
		"a layer twice, by a link":  {saved(`"my:1"`, member{name: "b/layer.tar", link: "../a/layer.tar"}), layers, ""},
		"OCI layout":                {layout(`{"manifests":[{"digest":"` + digestIn(man) + `"}]}`), blobs, ""},
		"OCI layout with platforms": {layout(`{"manifests":[{"digest":"` + digestIn(platforms) + `"}]}`), blobs, ""},
		"OCI layout with two images, one called so": {layout(`{"manifests":[{"digest":"` + digestIn(foreign) + `"},{"digest":"` + digestIn(man) + `","annotations":{"io.containerd.image.name":"docker.io/library/my:1"}}]}`), blobs, ""},

		"no tar":                        {[]byte(strings.Repeat("x", 4096)), nil, "not a tar"},
		"empty":                         {nil, nil, "not a tar"},
		"cut off":                       {whole[:len(whole)/2], nil, ""},
		"a tar of something":            {archiveOf(t, member{name: "etc/passwd", body: "x"}), nil, "neither"},
		"an old Docker's":               {archiveOf(t, member{name: "repositories", body: "{}"}), nil, "1.10"},
		"a layer is missing":            {saved(`"my:1"`), nil, "missing"},
		"another architecture":          {archiveOf(t, member{name: "manifest.json", body: `[{"Config":"c","Layers":[]}]`}, member{name: "c", body: `{"architecture":"s390x","os":"linux"}`}), nil, "s390x"},
		"two images":                    {archiveOf(t, member{name: "manifest.json", body: `[{"Config":"c"},{"Config":"d"}]`}), nil, "2 images"},
		"nonsense for an index":         {archiveOf(t, member{name: "manifest.json", body: `{`}), nil, "not understood"},
		"a digest that is none":         {layout(`{"manifests":[{"digest":"sha256:../../x"}]}`), nil, "digest"},
		"a layer twice":                 {saved(`"my:1"`, member{name: "b/layer.tar", body: "two"}, member{name: "./a/layer.tar", body: "other"}), nil, "twice"},
		"a configuration twice":         {saved(`"my:1"`, member{name: "b/layer.tar", body: "two"}, member{name: "c.json", body: imageConfig}), nil, "c.json is in it twice"},
		"a layer twice, once as a link": {saved(`"my:1"`, member{name: "b/layer.tar", body: "two"}, member{name: "b/layer.tar", link: "../a/layer.tar"}), nil, "twice"},
		"a layer that is another's":     {forged(l2.name), nil, "digest"},
		"a manifest that is another's":  {forged(man.name), nil, "digest"},
		"a configuration of another":    {forged(conf.name), nil, "digest"},
		"an index in itself":            {layout(`{"manifests":[]}`), nil, "0 images"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			from, to := filepath.Join(dir, "in"), filepath.Join(dir, "out.tar")
			if err := os.WriteFile(from, c.data, 0o600); err != nil {
				t.Fatal(err)
			}
			r := testRecipe()
			r.Groups = []string{"docker"}
			r, err := r.With(t.Context(), "x", []Load{{Reference: "my:1", Path: from}})
			if err != nil {
				t.Fatal(err)
			}
			id, err := prepareLoad(t.Context(), r.Loads[0], "amd64", to)
			if c.layers == nil {
				if !fault.Is(err, fault.InvalidArgument) || !strings.Contains(err.Error(), c.why) || !strings.Contains(err.Error(), "my:1") {
					t.Fatalf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256([]byte(imageConfig))
			if id != "sha256:"+hex.EncodeToString(sum[:]) {
				t.Errorf("id %s", id)
			}
			a := &archive{ctx: t.Context(), path: to}
			var names []string
			var index []byte
			err = a.each(func(name string, h *tar.Header, r io.Reader) (err error) {
				names = append(names, name)
				if name == savedIndex {
					index, err = io.ReadAll(r)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			var got []struct {
				Config           string
				RepoTags, Layers []string
			}
			if err := json.Unmarshal(index, &got); err != nil || len(got) != 1 {
				t.Fatalf("%v: %s", err, index)
			}
			if !slices.Equal(got[0].RepoTags, []string{"my:1"}) || !slices.Equal(got[0].Layers, c.layers) {
				t.Errorf("index %s", index)
			}
			if want := len(c.layers) + 2; len(names) != want || slices.Contains(names, "unwanted") {
				t.Errorf("entries %v", names)
			}
		})
	}
}

// TestLoadsMakeAnotherImage holds what a recipe with container images is known
// by.
func TestLoadsMakeAnotherImage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.tar")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	base, err := Default("amd64")
	if err != nil {
		t.Fatal(err)
	}
	with := func(name, ref string) Recipe {
		t.Helper()
		r, err := base.With(t.Context(), name, []Load{{Reference: ref, Path: file}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	write("1")
	seen := map[string]string{digest(t, base): "the recipe"}
	add := func(what string, r Recipe) {
		t.Helper()
		d := digest(t, r)
		if seen[d] != "" {
			t.Errorf("%s is the same image as %s", what, seen[d])
		}
		seen[d] = what
		if r.PackagesDigest() != base.PackagesDigest() || r.base() != "default" {
			t.Errorf("%s: the packages are fetched again", what)
		}
	}
	add("with an image", with("", "a:1"))
	add("with another name for it", with("", "a:2"))
	add("called otherwise", with("mine", "a:1"))
	same := digest(t, with("mine", "a:1"))
	write("2")
	add("with another archive", with("mine", "a:1"))
	write("1")
	if digest(t, with("mine", "a:1")) != same {
		t.Error("the same archive makes another image")
	}
	for name, f := range map[string]func() error{
		"another recipe's name": func() error { _, err := base.With(t.Context(), "minimal", nil); return err },
		"a path for a name":     func() error { _, err := base.With(t.Context(), "../x", nil); return err },
		"one reference twice": func() error {
			_, err := base.With(t.Context(), "", []Load{{Reference: "a:1", Path: file}, {Reference: "a:1", Path: file}})
			return err
		},
		"no such file": func() error {
			_, err := base.With(t.Context(), "", []Load{{Reference: "a:1", Path: file + "x"}})
			return err
		},
		"no Docker": func() error {
			m, err := Minimal("amd64")
			if err != nil {
				return err
			}
			_, err = m.With(t.Context(), "", []Load{{Reference: "a:1", Path: file}})
			return err
		},
	} {
		if err := f(); !fault.Is(err, fault.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestComposePreloads: the archives are in the root file system, for root alone.
func TestComposePreloads(t *testing.T) {
	file := filepath.Join(t.TempDir(), "load-000.tar")
	if err := os.WriteFile(file, []byte("archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := testRecipe()
	r.Layers = append(r.Layers, "preload")
	var out bytes.Buffer
	if _, err := compose(t.Context(), r, bytes.NewReader(packageArchive(t)), []string{file}, &out, time.Unix(1e9, 0)); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for tr := tar.NewReader(&out); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(tr)
		found[strings.TrimPrefix(h.Name, "./")] = string(body)
	}
	for _, name := range []string{"etc/systemd/system/" + PreloadUnit, "usr/lib/sandboxforge/preload"} {
		if found[name] == "" {
			t.Errorf("%s is not in the image", name)
		}
	}
	if found[strings.TrimPrefix(PreloadDir, "/")+"/load-000.tar"] != "archive" {
		t.Errorf("the archive is not in the image: %v", found)
	}
}

// TestPrepareLoadBound: a small archive does not fill the host's disk, and the
// error says so.
func TestPrepareLoadBound(t *testing.T) {
	const size = 1 << 50
	dir := t.TempDir()
	from, to := filepath.Join(dir, "in"), filepath.Join(dir, "out.tar")
	// A sparse file, all hole. The tar writer makes none: the records that say so
	// are written as a file, whose type is changed then.
	records := paxRecord("GNU.sparse.major", "0") + paxRecord("GNU.sparse.minor", "1") + paxRecord("GNU.sparse.size", fmt.Sprint(size)) +
		paxRecord("GNU.sparse.numblocks", "1") + paxRecord("GNU.sparse.map", fmt.Sprintf("%d,0", size))
	data := archiveOf(t, member{name: "pax", body: records}, member{name: "layer"})
	data[156] = 'x'
	sum := int('x') - int('0')
	var old int
	if _, err := fmt.Sscanf(string(data[148:154]), "%o", &old); err != nil {
		t.Fatal(err)
	}
	copy(data[148:], fmt.Sprintf("%06o", old+sum))
	head := archiveOf(t, member{name: "manifest.json", body: `[{"Config":"c","Layers":["layer"]}]`},
		member{name: "c", body: `{"architecture":"amd64","os":"linux","rootfs":{"diff_ids":["sha256:1"]}}`})
	data = append(head[:len(head)-1024], data...) // without the end of the first
	if err := os.WriteFile(from, data, 0o600); err != nil {
		t.Fatal(err)
	}
	sha, err := fileSum(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	_, err = prepareLoad(t.Context(), Load{Reference: "my:1", Path: from, ArchiveSHA256: sha}, "amd64", to)
	if !fault.Is(err, fault.InsufficientDisk) || !strings.Contains(err.Error(), "layer in "+from) || !strings.Contains(err.Error(), fmt.Sprint(size>>20)) {
		t.Errorf("%v", err)
	}
	if info, err := os.Stat(to); err != nil || info.Size() > 1<<20 {
		t.Errorf("written: %v, %v", info, err)
	}
}

func paxRecord(k, v string) string {
	for n := len(k) + len(v) + 3; ; n++ {
		if r := fmt.Sprintf("%d %s=%s\n", n, k, v); len(r) == n {
			return r
		}
	}
}

// TestLoadOfWhatIsNoFile: a FIFO would keep the build waiting, and a device would
// be read for ever.
func TestLoadOfWhatIsNoFile(t *testing.T) {
	for _, name := range []string{t.TempDir(), os.DevNull, filepath.Join(t.TempDir(), "missing")} {
		_, err := fileSum(t.Context(), name)
		if err == nil {
			t.Errorf("%s has a digest", name)
		}
	}
}
