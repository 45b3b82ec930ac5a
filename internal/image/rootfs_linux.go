package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// Files of an image.
const (
	kernelFile = "kernel"
	initrdFile = "initrd"
	rootFile   = "root.ext4"
)

// made is a finished image that has no name yet.
type made struct {
	dir      string
	release  string
	packages []Package
	loaded   []ContainerImage
}

// rootStage makes kernel, initrd and root file system in a directory below
// work.
func (b *builder) rootStage(ctx context.Context, work, packages string) (*made, error) {
	say := func(fraction float64, message string) {
		b.opt.report(Progress{Stage: "root file system", Message: message, Fraction: fraction})
	}
	tree, dir := filepath.Join(work, "tree"), filepath.Join(work, "image")
	for _, d := range []string{tree, dir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return nil, err
		}
	}
	loaded, archives, err := b.loads(ctx, work, say)
	if err != nil {
		return nil, err
	}
	say(packagesShare, "unpack packages and add the guest's own files")
	found, err := b.unpack(ctx, packages, tree, archives)
	if err != nil {
		return nil, err
	}
	kernel, err := bootKernel(b.recipe.Arch, found.kernel)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, kernelFile), kernel, 0o644); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, initrdFile), buildInitrd(b.recipe.Init, found.early), 0o644); err != nil {
		return nil, err
	}
	say(0.93, "make the file system")
	root := filepath.Join(dir, rootFile)
	size, err := b.rootBytes(archives)
	if err != nil {
		return nil, err
	}
	if err := b.makeFileSystem(ctx, tree, root, size); err != nil {
		return nil, err
	}
	b.opt.report(Progress{Stage: "check", Message: "check the file system", Fraction: 0.96})
	if err := b.run(ctx, child{argv: []string{b.tools.find("e2fsck"), "-fn", root}}); err != nil {
		return nil, fmt.Errorf("the new file system is not clean: %w", err)
	}
	return &made{dir: dir, release: found.release, packages: found.packages, loaded: loaded}, nil
}

// unpack streams the package archive through compose into tar.
func (b *builder) unpack(ctx context.Context, packages, tree string, archives []string) (*composed, error) {
	f, err := os.Open(packages)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	r, w := io.Pipe()
	type outcome struct {
		found *composed
		err   error
	}
	result := make(chan outcome, 1)
	go func() {
		found, err := compose(ctx, b.recipe, z, archives, w, b.now())
		w.CloseWithError(err) // nil is EOF
		result <- outcome{found, err}
	}()
	tarErr := b.run(ctx, child{
		argv:  b.inNamespace(b.tools.find("tar"), "-x", "-p", "--numeric-owner", "-C", tree, "-f", "-"),
		stdin: r,
	})
	r.CloseWithError(errors.New("tar ended early"))
	o := <-result
	if tarErr != nil {
		return nil, errors.Join(tarErr, o.err)
	}
	return o.found, o.err
}

// loads prepares the archives of container images below work.
func (b *builder) loads(ctx context.Context, work string, say func(float64, string)) (loaded []ContainerImage, archives []string, err error) {
	for i, l := range b.recipe.Loads {
		say(packagesShare, "prepare the container image "+l.Reference)
		target := filepath.Join(work, fmt.Sprintf("load-%03d.tar", i))
		id, err := prepareLoad(ctx, l, b.recipe.Arch, target)
		if err != nil {
			return nil, nil, err
		}
		loaded, archives = append(loaded, ContainerImage{Load: l, ID: id}), append(archives, target)
	}
	return loaded, archives, nil
}

// rootBytes is the size of the root file system. What is loaded takes room three
// times: the archive as prepareLoad wrote it, what Docker unpacks it to on its
// way, and the layers, which may have been compressed.
func (b *builder) rootBytes(archives []string) (int64, error) {
	var l int64
	for _, a := range archives {
		info, err := os.Stat(a)
		if err != nil {
			return 0, err
		}
		l += info.Size()
	}
	n := int64(b.recipe.SizeMiB) << 20
	if l > 0 {
		n += (5*l + 64<<20) &^ (1<<20 - 1)
	}
	return n, nil
}

// makeFileSystem fills a sparse file with an ext4 of the tree. No loop device
// and no mount: mkfs copies the tree itself.
func (b *builder) makeFileSystem(ctx context.Context, tree, root string, size int64) error {
	f, err := os.OpenFile(root, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return err
	}
	err = b.run(ctx, child{argv: b.inNamespace(b.tools.find("mkfs.ext4"), "-q", "-F", "-L", "sandboxforge", "-m", "1",
		"-J", "size=32", "-E", "root_owner=0:0,lazy_itable_init=1,lazy_journal_init=1", "-d", tree, root)})
	if err != nil {
		return err
	}
	// Before publishing: a tree may hold names that only the namespace's root
	// can delete, and it is as large as the image.
	return b.removeTree(ctx, tree)
}
