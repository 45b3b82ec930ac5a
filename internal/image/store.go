package image

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"sandboxforge/internal/fault"
)

// Store is a directory of images. Several processes may use one at once. The
// zero value is not useful.
type Store struct {
	// Dir is created when needed. Images are directories NAME-ARCH-DIGEST in
	// it; what begins with a dot is the store's own.
	Dir string
}

// The store's own directories.
const (
	lockDir     = ".locks"
	workDir     = ".work"     // builds under way
	packagesDir = ".packages" // results of the first stage
)

// dirName is where the image of a recipe is kept.
func dirName(name, arch, digest string) string { return name + "-" + arch + "-" + digest[:16] }

// List returns the images there are, the newest first. A directory that is not
// a whole image is not listed. A missing store has no images.
func (s Store) List() ([]*Image, error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "cannot read the image directory").
			Next("make it yours: sudo chown -R $USER %s", s.Dir)
	}
	var images []*Image
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if img, err := openImage(filepath.Join(s.Dir, e.Name())); err == nil {
			images = append(images, img)
		}
	}
	slices.SortFunc(images, func(a, b *Image) int { return b.Manifest.Created.Compare(a.Manifest.Created) })
	return images, nil
}

// Find returns the newest image called name for this machine's architecture;
// "" means the default recipe's. name may be NAME@DIGEST with the beginning of
// a digest. IMAGE_NOT_FOUND tells how to build it.
func (s Store) Find(name string) (*Image, error) { return s.FindArch(name, runtime.GOARCH) }

// FindArch is Find for another architecture.
func (s Store) FindArch(name, arch string) (*Image, error) {
	base, digest, _ := strings.Cut(name, "@")
	if base == "" {
		base = DefaultName
	}
	images, err := s.List()
	if err != nil {
		return nil, err
	}
	for _, img := range images {
		if img.Name == base && img.Arch == arch && strings.HasPrefix(img.Digest, digest) {
			return img, nil
		}
	}
	return nil, notFound(name, base, arch, images)
}

// Lookup returns the image of exactly this recipe, or IMAGE_NOT_FOUND.
func (s Store) Lookup(r Recipe) (*Image, error) {
	digest, err := r.Digest()
	if err != nil {
		return nil, err
	}
	img, err := openImage(filepath.Join(s.Dir, dirName(r.Name, r.Arch, digest)))
	if err != nil {
		return nil, notFound(r.Name, r.Name, r.Arch, nil)
	}
	return img, nil
}

// notFound says how to make the image, and which of there would do.
func notFound(asked, name, arch string, there []*Image) error {
	f := fault.New(fault.ImageNotFound, "there is no image %q", cmp.Or(asked, name))
	if arch != runtime.GOARCH {
		return fault.New(fault.ImageNotFound, "there is no image %q for %s", cmp.Or(asked, name), arch).
			Because("this machine is %s, and images are built for the machine that builds them", runtime.GOARCH).
			Next("leave vm.arch out, or set it to %s", runtime.GOARCH)
	}
	if slices.Contains(Names(), name) {
		return f.Because("it has not been built on this machine yet, or not in this version").
			Next("run `sandboxforge image build %s` on the host", name)
	}
	choose := ""
	var built []string
	for _, img := range there {
		if img.Arch == arch && !slices.Contains(built, img.Name) {
			built = append(built, img.Name)
		}
	}
	if len(built) > 0 {
		slices.Sort(built)
		choose = " choose one of: " + strings.Join(built, ", ") + ","
	}
	return f.Because("no image of that name has been built").
		Next("build it: `sandboxforge image build --as %s`,%s or leave vm.image out", name, choose)
}

// Remove deletes an image. inUse, if not nil, is asked under the image's lock
// and names what still uses it ("" = nothing); then the image stays and the
// fault says by whom it is held. Removing a missing image succeeds.
func (s Store) Remove(ctx context.Context, img *Image, inUse func(*Image) (string, error)) error {
	unlock, err := s.lock(ctx, lockName(img.Name, img.Arch), nil)
	if err != nil {
		return err
	}
	defer unlock()
	if inUse != nil {
		by, err := inUse(img)
		if err != nil {
			return err
		}
		if by != "" {
			return fault.New(fault.InvalidArgument, "image %s is in use by %s", img.Name, by).
				Next("destroy what uses it first")
		}
	}
	if filepath.Dir(img.Dir) != filepath.Clean(s.Dir) {
		return fault.New(fault.InvalidArgument, "%s is not an image of this store", img.Dir)
	}
	// The manifest first: without it the rest is no image.
	for _, remove := range []func() error{
		func() error { return os.Remove(filepath.Join(img.Dir, manifestName)) },
		func() error { return os.RemoveAll(img.Dir) },
	} {
		if err := remove(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fault.Wrap(err, fault.Internal, "cannot remove image %s", img.Name)
		}
	}
	return nil
}

func lockName(name, arch string) string { return name + "-" + arch }

// BuildOptions are what a build tells about itself.
type BuildOptions struct {
	// Progress is called from the building goroutine, never concurrently; it
	// should not block. May be nil.
	Progress func(Progress)
	// Logger gets details for people who look for a mistake. May be nil.
	Logger *slog.Logger
}

func (o BuildOptions) report(p Progress) {
	if o.Progress != nil {
		o.Progress(p)
	}
}

func (o BuildOptions) logger() *slog.Logger {
	if o.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Logger
}
