package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// composed is what one pass over the package archive found besides the files
// that it passed on.
type composed struct {
	kernel   []byte // the packaged kernel
	release  string // of the kernel
	early    []module
	packages []Package
}

// Package is one installed package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// maxKept bounds the files of the package archive that are held in memory.
const maxKept = 64 << 20

// compose copies the package archive to out as the image's root file system:
// without what the recipe drops, with accounts, layers, masks, links and the
// agent added, and archives of container images. The archive is read as a stream, so it holds no more in memory
// than the kernel and the modules.
func compose(ctx context.Context, r Recipe, packages io.Reader, archives []string, out io.Writer, now time.Time) (*composed, error) {
	c := &composer{recipe: r, out: tar.NewWriter(out), now: now, replaced: map[string]bool{}, dirs: map[string]bool{}, kept: map[string][]byte{}, drop: newDropper(r.Drops)}
	layers, err := layerFiles(r.Layers)
	if err != nil {
		return nil, err
	}
	for _, f := range layers {
		c.replaced[f.Path] = true
	}
	for _, m := range r.Masks {
		c.replaced["etc/systemd/system/"+m] = true
	}
	for p := range r.Links {
		c.replaced[p] = true
	}
	in := tar.NewReader(packages)
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the package archive: %w", err)
		}
		if err := c.pass(h, in); err != nil {
			return nil, err
		}
	}
	result, err := c.finish(layers)
	if err != nil {
		return nil, err
	}
	if err := c.preload(ctx, archives); err != nil {
		return nil, err
	}
	return result, c.out.Close()
}

type composer struct {
	recipe   Recipe
	out      *tar.Writer
	now      time.Time
	replaced map[string]bool
	dirs     map[string]bool
	kept     map[string][]byte
	drop     dropper
	release  string
	kernel   []byte
}

// accountFiles are edited, not copied.
var accountFiles = []string{"etc/passwd", "etc/group", "etc/shadow", "etc/gshadow"}

// pass handles one entry of the package archive.
func (c *composer) pass(h *tar.Header, body io.Reader) error {
	name := strings.Trim(path.Clean("/"+h.Name), "/")
	regular := h.Typeflag == tar.TypeReg
	if regular && strings.HasPrefix(name, "boot/vmlinuz-") {
		if c.kernel != nil {
			return errors.New("the package archive has two kernels")
		}
		c.release = strings.TrimPrefix(name, "boot/vmlinuz-")
		var err error
		c.kernel, err = keep(body, h.Size)
		return err
	}
	if name == "" || c.replaced[name] || c.drop.match(name) {
		return nil
	}
	if h.Typeflag == tar.TypeDir {
		c.dirs[name] = true
	}
	if regular && (slices.Contains(accountFiles, name) || name == "var/lib/dpkg/status" || strings.HasPrefix(name, "usr/lib/modules/")) {
		content, err := keep(body, h.Size)
		if err != nil {
			return err
		}
		c.kept[name] = content
		if slices.Contains(accountFiles, name) {
			content = c.account(name, content)
			h.Size = int64(len(content))
		}
		body = bytes.NewReader(content)
	}
	if err := c.out.WriteHeader(h); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, err := io.Copy(c.out, body); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func keep(r io.Reader, size int64) ([]byte, error) {
	if size > maxKept {
		return nil, fmt.Errorf("a file of %d bytes is larger than expected", size)
	}
	return io.ReadAll(r)
}

// finish writes what the recipe adds.
func (c *composer) finish(layers []file) (*composed, error) {
	if c.kernel == nil {
		return nil, errors.New("the package archive has no kernel")
	}
	base := "usr/lib/modules/" + c.release + "/"
	index := parseModules(c.kept[base+"modules.dep"], c.kept[base+"modules.builtin"])
	earlyFiles, err := index.order(c.recipe.EarlyModules, true)
	if err != nil {
		return nil, err
	}
	lateFiles, err := index.order(c.recipe.LateModules, false)
	if err != nil {
		return nil, err
	}
	res := &composed{kernel: c.kernel, release: c.release, packages: parseStatus(c.kept["var/lib/dpkg/status"])}
	for _, f := range earlyFiles {
		content, ok := c.kept[base+f]
		if !ok || !strings.HasSuffix(f, ".ko") {
			return nil, fmt.Errorf("module %s is not in the package archive as a plain file", f)
		}
		res.early = append(res.early, module{name: path.Base(f), content: content})
	}

	for _, d := range []struct {
		name     string
		mode     int64
		uid, gid int
	}{
		{"dev", 0o755, 0, 0}, {"proc", 0o755, 0, 0}, {"sys", 0o755, 0, 0}, {"run", 0o755, 0, 0}, {"tmp", 0o1777, 0, 0},
		{"home/" + sandboxUser, 0o755, sandboxID, sandboxID}, {"workspace", 0o755, sandboxID, sandboxID},
		{"var/lib/sandboxforge", 0o700, 0, 0},
	} {
		if err := c.mkdir(d.name, d.mode, d.uid, d.gid); err != nil {
			return nil, err
		}
	}
	if len(lateFiles) > 0 {
		layers = append(layers, file{Path: "usr/lib/sandboxforge/modules", Mode: 0o644, Content: []byte(strings.Join(lateFiles, "\n") + "\n")})
	}
	layers = append(layers,
		file{Path: "usr/lib/sandboxforge/agent", Mode: 0o755, Content: c.recipe.Agent},
		file{Path: "usr/lib/sandboxforge/shim", Mode: 0o755, Content: c.recipe.Shim},
		// Empty, not missing: systemd takes a missing one for a first boot.
		file{Path: "etc/machine-id", Mode: 0o444},
		// Newer than /usr, or systemd takes the image for freshly updated.
		file{Path: "etc/.updated", Mode: 0o644}, file{Path: "var/.updated", Mode: 0o644},
	)
	for _, f := range layers {
		if err := c.write(f); err != nil {
			return nil, err
		}
	}
	for _, m := range c.recipe.Masks {
		if err := c.link("etc/systemd/system/"+m, "/dev/null"); err != nil {
			return nil, err
		}
	}
	links := make([]string, 0, len(c.recipe.Links))
	for p := range c.recipe.Links {
		links = append(links, p)
	}
	slices.Sort(links)
	for _, p := range links {
		if err := c.link(p, c.recipe.Links[p]); err != nil {
			return nil, err
		}
	}
	return res, nil
}

func (c *composer) mkdir(name string, mode int64, uid, gid int) error {
	if err := c.parents(name); err != nil {
		return err
	}
	c.dirs[name] = true
	return c.out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "./" + name + "/", Mode: mode, Uid: uid, Gid: gid, ModTime: c.now})
}

func (c *composer) parents(name string) error {
	parent := path.Dir(name)
	if parent == "." || c.dirs[parent] {
		return nil
	}
	return c.mkdir(parent, 0o755, 0, 0)
}

func (c *composer) write(f file) error {
	if err := c.parents(f.Path); err != nil {
		return err
	}
	if err := c.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "./" + f.Path, Mode: f.Mode, Size: int64(len(f.Content)), ModTime: c.now}); err != nil {
		return err
	}
	_, err := c.out.Write(f.Content)
	return err
}

// preload adds archives of container images, in the order in which they are
// loaded.
func (c *composer) preload(ctx context.Context, archives []string) error {
	dir := strings.TrimPrefix(PreloadDir, "/")
	if len(archives) > 0 {
		if err := c.mkdir(dir, 0o700, 0, 0); err != nil {
			return err
		}
	}
	for _, a := range archives {
		if err := c.copyFile(ctx, a, dir+"/"+filepath.Base(a)); err != nil {
			return err
		}
	}
	return nil
}

func (c *composer) copyFile(ctx context.Context, from, name string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := c.out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "./" + name, Mode: 0o600, Size: info.Size(), ModTime: c.now}); err != nil {
		return err
	}
	_, err = io.Copy(c.out, readerUntil{ctx, f})
	return err
}

func (c *composer) link(name, target string) error {
	if err := c.parents(name); err != nil {
		return err
	}
	return c.out.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "./" + name, Linkname: target, Mode: 0o777, ModTime: c.now})
}
