package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"sandboxforge/internal/fault"
	hostfs "sandboxforge/internal/host"
)

// Load is a container image that a guest image brings along: it is in Docker
// before anything asks for it.
type Load struct {
	// Reference is what the image is called in the guest, such as mysql:8.0.
	Reference string `json:"reference"`
	// ArchiveSHA256 is the hex digest of the archive it came from.
	ArchiveSHA256 string `json:"archive_sha256"`

	// Path is the archive on this host; not needed once the image is built.
	Path string `json:"-"`
}

// ContainerImage is a preloaded container image in a manifest.
type ContainerImage struct {
	Load
	// ID is the digest of the image's configuration, by which Docker knows it.
	ID string `json:"id"`
}

// Where the archives are in a guest until Docker has them, and the unit that
// loads them. The directory is gone when all are loaded.
const (
	PreloadDir  = "/var/lib/sandboxforge/preload"
	PreloadUnit = "sandboxforge-preload.service"
)

// maxIndex bounds the JSON files of an archive, in bytes.
const maxIndex = 4 << 20

var imageName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// With returns a recipe for an image that also brings container images along,
// and is called name; "" keeps the recipe's own. It reads the archives once, to
// know their digests. The loads of one recipe must have different references.
func (r Recipe) With(ctx context.Context, name string, loads []Load) (Recipe, error) {
	if name != "" && name != r.Name {
		if !imageName.MatchString(name) {
			return r, fault.New(fault.InvalidArgument, "%q cannot be the name of an image", name).
				Next("use letters, digits, _ . and -, starting with a letter or digit")
		}
		if slices.Contains(Names(), name) {
			return r, fault.New(fault.InvalidArgument, "%s is the name of another recipe's image", name).Next("choose another name")
		}
		r.Base, r.Name = r.base(), name
	}
	if len(loads) == 0 {
		return r, nil
	}
	if !slices.Contains(r.Groups, "docker") {
		return r, fault.New(fault.InvalidArgument, "images of the recipe %s have no Docker that could hold container images", r.base()).
			Next("use the recipe %s", DefaultName)
	}
	r.Loads = nil
	for _, l := range loads {
		if slices.ContainsFunc(r.Loads, func(o Load) bool { return o.Reference == l.Reference }) {
			return r, fault.New(fault.InvalidArgument, "%s is to be loaded twice", l.Reference)
		}
		if l.Path != "" {
			sum, err := fileSum(ctx, l.Path)
			if err != nil {
				return r, fault.Wrap(err, fault.InvalidArgument, "the archive %s cannot be read", l.Path)
			}
			l.ArchiveSHA256 = sum
		}
		r.Loads = append(r.Loads, l)
	}
	r.Layers = append(slices.Clone(r.Layers), "preload")
	links := map[string]string{}
	for k, v := range r.Links {
		links[k] = v
	}
	links["etc/systemd/system/multi-user.target.wants/"+PreloadUnit] = "/etc/systemd/system/" + PreloadUnit
	r.Links = links
	return r, nil
}

// base is the recipe of which this one is a variation.
func (r Recipe) base() string {
	if r.Base != "" {
		return r.Base
	}
	return r.Name
}

func fileSum(ctx context.Context, name string) (string, error) {
	// A FIFO would keep the open waiting, and a device has no end.
	st, err := os.Stat(name)
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("it is not a file")
	}
	if err != nil {
		return "", err
	}
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, readerUntil{ctx, f}); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

type readerUntil struct {
	ctx context.Context
	r   io.Reader
}

func (r readerUntil) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// prepareLoad writes an archive that Docker loads as exactly one image, called
// by the reference: what `docker save` or an OCI tool wrote, with only what
// belongs to the image, and an index that Docker of any age reads. It returns
// the image's id.
func prepareLoad(ctx context.Context, l Load, arch, target string) (id string, err error) {
	bad := func(format string, args ...any) error {
		return fault.New(fault.InvalidArgument, "%s cannot be loaded from %s: %s", l.Reference, l.Path, fmt.Sprintf(format, args...)).
			Next("write the archive with `docker save IMAGE -o FILE`, or `skopeo copy docker://IMAGE docker-archive:FILE` or oci-archive:FILE")
	}
	sum, err := fileSum(ctx, l.Path)
	if err != nil {
		return "", fault.Wrap(err, fault.InvalidArgument, "the archive %s cannot be read", l.Path)
	}
	if sum != l.ArchiveSHA256 {
		return "", bad("it changed while the image was built")
	}
	a := &archive{ctx: ctx, path: l.Path}
	parts, err := a.parts(l.Reference, arch)
	if err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		return "", bad("%v", err)
	}
	out, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer out.Close()
	tw := tar.NewWriter(out)
	index, err := json.Marshal([]saved{{Config: parts.config, RepoTags: []string{l.Reference}, Layers: parts.layers}})
	if err != nil {
		return "", err
	}
	put := func(name string, size int64, r io.Reader) error {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}); err != nil {
			return err
		}
		h := sha256.New()
		if _, err := io.Copy(tw, io.TeeReader(r, h)); err != nil {
			return err
		}
		return checkBlob(name, h.Sum(nil))
	}
	if err := put(savedIndex, int64(len(index)), bytes.NewReader(index)); err != nil {
		return "", err
	}
	want, seen := map[string]bool{parts.config: true}, map[string]bool{}
	for _, p := range parts.layers {
		want[p] = true
	}
	// Older Dockers write a layer that an image has twice as a link.
	err = a.each(func(name string, h *tar.Header, _ io.Reader) error {
		if want[name] && h.Typeflag == tar.TypeSymlink {
			want[clean(path.Join(path.Dir(name), h.Linkname))] = true
		}
		return nil
	})
	if err == nil {
		err = a.each(func(name string, h *tar.Header, r io.Reader) error {
			if seen[name] { // and which of the two was looked at?
				return fmt.Errorf("%s is in it twice", name)
			}
			if !want[name] {
				return nil
			}
			delete(want, name)
			seen[name] = true
			switch h.Typeflag {
			case tar.TypeReg:
				if err := roomFor(l, name, h.Size, filepath.Dir(target)); err != nil {
					return err
				}
				return put(name, h.Size, r)
			case tar.TypeSymlink:
				return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: h.Linkname, Mode: 0o777})
			}
			return fmt.Errorf("%s is not a file in it", name)
		})
	}
	if err == nil && len(want) > 0 {
		for name := range want {
			err = fmt.Errorf("%s is missing in it", name)
		}
	}
	if err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if fault.Is(err, fault.InsufficientDisk) {
			return "", diskFull(err, filepath.Dir(target))
		}
		return "", bad("%v", err)
	}
	if err := errors.Join(tw.Close(), out.Close()); err != nil {
		return "", err
	}
	return parts.id, nil
}

// loadRoom is what has to stay free beside the archives of container images, in
// bytes.
const loadRoom = 2 << 30

// roomFor fails if an entry of an archive does not fit below dir. A small archive
// may hold an entry of any size.
func roomFor(l Load, entry string, size int64, dir string) error {
	free, err := hostfs.DiskFree(dir)
	if err != nil {
		return err
	}
	if size <= free-loadRoom {
		return nil
	}
	return fault.New(fault.InsufficientDisk, "no space on the host to load %s: %s in %s has %d MiB, and %d MiB are free, of which %d have to stay so",
		l.Reference, entry, l.Path, size>>20, free>>20, int64(loadRoom)>>20).
		Next("free disk space below %s, or set SANDBOXFORGE_HOME to a larger disk", dir).
		With("directory", dir).With("free_bytes", free).With("needed_bytes", size+loadRoom)
}

var blobName = regexp.MustCompile(`^blobs/sha256/[0-9a-f]{64}$`)

// checkBlob fails if an entry that is named for its digest has another.
func checkBlob(name string, sum []byte) error {
	if blobName.MatchString(name) && path.Base(name) != hex.EncodeToString(sum) {
		return fmt.Errorf("%s in it has the digest %x", name, sum)
	}
	return nil
}

// savedIndex is the index of docker save.
const savedIndex = "manifest.json"

// saved is one image in it.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// archive is a tar file, compressed or not, that is read several times.
type archive struct {
	ctx  context.Context
	path string
}

// each calls f for every entry, by its clean name.
func (a *archive) each(f func(name string, h *tar.Header, r io.Reader) error) error {
	file, err := os.Open(a.path)
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewReaderSize(readerUntil{a.ctx, file}, 1<<20)
	var r io.Reader = in
	switch magic, _ := in.Peek(4); {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		if r, err = gzip.NewReader(in); err != nil {
			return err
		}
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(in)
		if err != nil {
			return err
		}
		defer z.Close()
		r = z
	}
	tr := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) && n > 0 {
			return nil
		}
		if err != nil {
			if n == 0 {
				return errors.New("it is not a tar archive")
			}
			return fmt.Errorf("it is damaged: %w", err)
		}
		if err := f(strings.TrimPrefix(path.Clean("/"+h.Name), "/"), h, tr); err != nil {
			return err
		}
	}
}

// files reads the named entries whole; those that are not there are missing in
// the result.
func (a *archive) files(names ...string) (map[string][]byte, error) {
	found := map[string][]byte{}
	err := a.each(func(name string, h *tar.Header, r io.Reader) error {
		if !slices.Contains(names, name) || h.Typeflag != tar.TypeReg {
			return nil
		}
		if found[name] != nil {
			return fmt.Errorf("%s is in it twice", name)
		}
		if h.Size > maxIndex {
			return fmt.Errorf("%s in it has %d bytes", name, h.Size)
		}
		data, err := io.ReadAll(r) // not nil, even of nothing
		if err != nil {
			return err
		}
		found[name] = data
		sum := sha256.Sum256(data)
		return checkBlob(name, sum[:])
	})
	return found, err
}

// parts are the entries that make an image.
type parts struct {
	id     string // sha256:...
	config string
	layers []string
}

// parts finds the one image that the archive is to be loaded for.
func (a *archive) parts(reference, arch string) (parts, error) {
	top, err := a.files(savedIndex, "index.json", "oci-layout", "repositories")
	if err != nil {
		return parts{}, err
	}
	var p parts
	switch {
	case top[savedIndex] != nil:
		p, err = fromSaved(top[savedIndex], reference)
	case top["index.json"] != nil && top["oci-layout"] != nil:
		p, err = a.fromLayout(top["index.json"], reference, arch)
	case top["repositories"] != nil:
		err = errors.New("it was written by a Docker older than 1.10")
	default:
		err = errors.New("it has neither manifest.json (docker save) nor index.json (OCI layout)")
	}
	if err != nil {
		return p, err
	}
	files, err := a.files(p.config)
	if err != nil {
		return p, err
	}
	text, ok := files[p.config]
	if !ok {
		return p, fmt.Errorf("%s is missing in it", p.config)
	}
	var config struct {
		Architecture, OS string
		RootFS           struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return p, fmt.Errorf("the image's configuration in it is not understood: %w", err)
	}
	if config.OS != "linux" || config.Architecture != arch {
		return p, fmt.Errorf("it is an image for %s/%s, and the guest is linux/%s", config.OS, config.Architecture, arch)
	}
	if len(config.RootFS.DiffIDs) != len(p.layers) {
		return p, fmt.Errorf("it has %d layers, and its configuration names %d", len(p.layers), len(config.RootFS.DiffIDs))
	}
	sum := sha256.Sum256(text)
	p.id = "sha256:" + hex.EncodeToString(sum[:])
	return p, nil
}

func fromSaved(index []byte, reference string) (parts, error) {
	var images []saved
	if err := json.Unmarshal(index, &images); err != nil {
		return parts{}, fmt.Errorf("%s in it is not understood: %w", savedIndex, err)
	}
	i := 0
	if len(images) != 1 {
		if i = slices.IndexFunc(images, func(s saved) bool { return slices.Contains(s.RepoTags, reference) }); i < 0 {
			return parts{}, fmt.Errorf("it has %d images, none of them called so", len(images))
		}
	}
	p := parts{config: clean(images[i].Config)}
	for _, l := range images[i].Layers {
		p.layers = append(p.layers, clean(l))
	}
	return p, nil
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// descriptor is a reference of an OCI layout.
type descriptor struct {
	MediaType   string
	Digest      string
	Annotations map[string]string
	Platform    *struct{ OS, Architecture string }
}

var sha256Digest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func (d descriptor) blob() (string, error) {
	if !sha256Digest.MatchString(d.Digest) {
		return "", fmt.Errorf("it has the digest %.80q", d.Digest)
	}
	return "blobs/sha256/" + strings.TrimPrefix(d.Digest, "sha256:"), nil
}

// named reports whether an OCI tool has called an image so.
func (d descriptor) named(reference string) bool {
	for _, k := range []string{"io.containerd.image.name", "org.opencontainers.image.ref.name"} {
		if v := d.Annotations[k]; v != "" && (v == reference || strings.HasSuffix(v, "/"+reference)) {
			return true
		}
	}
	return false
}

func (a *archive) fromLayout(index []byte, reference, arch string) (parts, error) {
	for range 4 { // an index may name indexes, one per platform
		var m struct {
			Manifests []descriptor
			Config    *descriptor
			Layers    []descriptor
		}
		if err := json.Unmarshal(index, &m); err != nil {
			return parts{}, fmt.Errorf("the index in it is not understood: %w", err)
		}
		if m.Config != nil {
			name, err := m.Config.blob()
			if err != nil {
				return parts{}, err
			}
			p := parts{config: name}
			for _, l := range m.Layers {
				if name, err = l.blob(); err != nil {
					return parts{}, err
				}
				p.layers = append(p.layers, name)
			}
			return p, nil
		}
		next := slices.DeleteFunc(slices.Clone(m.Manifests), func(d descriptor) bool {
			return d.Platform != nil && (d.Platform.OS != "linux" || d.Platform.Architecture != arch)
		})
		if len(next) > 1 {
			next = slices.DeleteFunc(next, func(d descriptor) bool { return !d.named(reference) })
		}
		if len(next) != 1 {
			return parts{}, fmt.Errorf("it has %d images, and %d of them fit linux/%s and the name", len(m.Manifests), len(next), arch)
		}
		name, err := next[0].blob()
		if err != nil {
			return parts{}, err
		}
		files, err := a.files(name)
		if err != nil {
			return parts{}, err
		}
		if index = files[name]; index == nil {
			return parts{}, fmt.Errorf("%s is missing in it", name)
		}
	}
	return parts{}, errors.New("its indexes are nested too deep")
}
