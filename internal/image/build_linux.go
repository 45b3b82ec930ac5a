package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/guestbin"
)

// Build returns the image of a recipe, making it first if it is not there. It
// blocks for as long as another build of the same image runs. When ctx ends,
// every child is ended and what was begun is removed. Faults: missing host
// programs (BACKEND_UNAVAILABLE), a full disk (INSUFFICIENT_DISK), a failed
// program (INTERNAL, with the end of its output).
func (s Store) Build(ctx context.Context, r Recipe, opt BuildOptions) (*Image, error) {
	return newBuilder(s, r, opt).build(ctx)
}

// builder is one call of Build. Tests replace the host's side of it.
type builder struct {
	store  Store
	recipe Recipe
	opt    BuildOptions
	tools  toolbox
	uid    int
	run    func(context.Context, child) error
	free   func(dir string) (uint64, error)
	now    func() time.Time
	// scratch is where an ordinary user's mmdebstrap unpacks: its users must
	// be able to walk there, so not below a home directory.
	scratch string
}

func newBuilder(s Store, r Recipe, opt BuildOptions) *builder {
	return &builder{store: s, recipe: r, opt: opt, tools: newToolbox(), uid: os.Getuid(), run: run, free: freeSpace, now: time.Now, scratch: "/var/tmp"}
}

// needed is the free space that a build from nothing takes, in bytes.
func (b *builder) needed() uint64 {
	if b.recipe.base() == MinimalName {
		return 1 << 30
	}
	return 3<<30 + 3*b.loadBytes()
}

// loadBytes is the size of the archives of container images.
func (b *builder) loadBytes() (n uint64) {
	for _, l := range b.recipe.Loads {
		if info, err := os.Stat(l.Path); err == nil {
			n += uint64(info.Size())
		}
	}
	return n
}

func (b *builder) build(ctx context.Context) (*Image, error) {
	if img, err := b.store.Lookup(b.recipe); err == nil {
		return img, nil
	}
	digest, err := b.recipe.Digest()
	if err != nil {
		return nil, err
	}
	key := lockName(b.recipe.Name, b.recipe.Arch)
	unlock, err := b.store.lock(ctx, key, func() {
		b.opt.report(Progress{Stage: "packages", Message: "waiting for another build of this image", Fraction: -1})
	})
	if err != nil {
		return nil, err
	}
	defer unlock()
	// Another process may have built it meanwhile.
	if img, err := b.store.Lookup(b.recipe); err == nil {
		return img, nil
	}
	if err := b.tools.check(b.uid == 0); err != nil {
		return nil, err
	}
	if err := b.clean(ctx, key); err != nil {
		return nil, err
	}
	img, err := b.stages(ctx, key, digest)
	// Also after a cancel: nothing is left behind.
	if cleanErr := b.clean(context.WithoutCancel(ctx), key); cleanErr != nil && err == nil {
		b.opt.logger().Warn("build remains could not be removed", "error", cleanErr)
	}
	if err != nil {
		return nil, b.explain(ctx, err)
	}
	return img, nil
}

func (b *builder) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fault.Wrap(ctx.Err(), fault.Cancelled, "the build of image %s was cancelled", b.recipe.Name).
			Next("run `sandboxforge image build %s` again; finished stages are kept", b.recipe.Name)
	}
	err = diskFull(err, b.store.Dir)
	var f *fault.Error
	if errors.As(err, &f) {
		return f
	}
	return fault.Wrap(err, fault.Internal, "image %s could not be built", b.recipe.Name).
		Next("look at the last lines of the program's output in this message; a mirror that cannot be reached is the most frequent cause").
		Next("run `sandboxforge image build %s` again; finished stages are kept", b.recipe.Name)
}

func (b *builder) stages(ctx context.Context, key, digest string) (*Image, error) {
	work := filepath.Join(b.store.Dir, workDir, key)
	if err := os.MkdirAll(work, 0o700); err != nil {
		return nil, err
	}
	free, err := b.free(work)
	if err != nil {
		return nil, err
	}
	packages := filepath.Join(b.store.Dir, packagesDir, lockName(b.recipe.base(), b.recipe.Arch)+"-"+b.recipe.PackagesDigest()[:16]+".tar.zst")
	need := b.needed()
	if _, err := os.Stat(packages); err == nil {
		need /= 2
	}
	if free < need {
		return nil, fault.New(fault.InsufficientDisk, "not enough free disk for image %s: %d MiB free, %d MiB needed", b.recipe.Name, free>>20, need>>20).
			Next("free disk space below %s, or set SANDBOXFORGE_HOME to a larger disk", b.store.Dir).
			With("directory", b.store.Dir).With("free_bytes", free).With("needed_bytes", need)
	}
	start := b.now()
	if err := b.packagesStage(ctx, work, packages); err != nil {
		return nil, err
	}
	b.opt.logger().Debug("packages ready", "file", packages, "took", b.now().Sub(start))
	start = b.now()
	made, err := b.rootStage(ctx, work, packages)
	if err != nil {
		return nil, err
	}
	b.opt.logger().Debug("root file system ready", "took", b.now().Sub(start))
	return b.publish(ctx, made, digest)
}

// publish writes the manifest and gives the finished directory its name.
// Everything is on disk before that.
func (b *builder) publish(ctx context.Context, made *made, digest string) (*Image, error) {
	b.opt.report(Progress{Stage: "publish", Message: "compute digests", Fraction: 0.97})
	m := Manifest{
		Format: manifestFormat, Name: b.recipe.Name, Arch: b.recipe.Arch, Digest: digest, Suite: b.recipe.Suite,
		Created: b.now().UTC(), KernelRelease: made.release, Cmdline: strings.Join(b.recipe.Cmdline, " "),
		AgentSHA256: guestbin.Digest(b.recipe.Agent), InitSHA256: guestbin.Digest(b.recipe.Init), ContainerImages: made.loaded, Recipe: b.recipe.Base, Packages: made.packages,
	}
	for _, a := range []struct {
		file string
		to   *Artifact
	}{{kernelFile, &m.Kernel}, {initrdFile, &m.Initrd}, {rootFile, &m.Root}} {
		path := filepath.Join(made.dir, a.file)
		if err := syncPath(path); err != nil {
			return nil, err
		}
		var err error
		if *a.to, err = artifactOf(ctx, path, a.file == rootFile); err != nil {
			return nil, err
		}
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := writeSynced(filepath.Join(made.dir, manifestName), append(text, '\n')); err != nil {
		return nil, err
	}
	if err := syncPath(made.dir); err != nil {
		return nil, err
	}
	final := filepath.Join(b.store.Dir, dirName(b.recipe.Name, b.recipe.Arch, digest))
	// What Lookup did not take for an image is in the way.
	if err := os.RemoveAll(final); err != nil {
		return nil, err
	}
	if err := os.Rename(made.dir, final); err != nil {
		return nil, err
	}
	if err := syncPath(b.store.Dir); err != nil {
		return nil, err
	}
	b.opt.report(Progress{Stage: "publish", Message: "image " + b.recipe.Name + " is ready", Fraction: 1})
	return openImage(final)
}

// clean removes what killed builds of this image left. Only the holder of the
// image's lock calls it.
func (b *builder) clean(ctx context.Context, key string) error {
	for _, dir := range []string{filepath.Join(b.store.Dir, workDir, key), b.scratchDir(key)} {
		if err := b.removeTree(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}

// removeTree deletes a directory. An ordinary user's builds contain files of
// users that exist only in his user namespace, which he can delete only there.
func (b *builder) removeTree(ctx context.Context, dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || !errors.Is(err, fs.ErrPermission) || b.uid == 0 {
		return err
	}
	return b.run(ctx, child{argv: b.inNamespace(b.tools.find("rm"), "-rf", "--one-file-system", "--", dir)})
}

// inNamespace prefixes a command so that an ordinary user runs it as root of a
// user namespace with his range of users.
func (b *builder) inNamespace(argv ...string) []string {
	if b.uid == 0 {
		return argv
	}
	return append([]string{b.tools.find("unshare"), "--user", "--map-auto", "--map-root-user", "--"}, argv...)
}

// scratchDir is named for the store too: the lock is per store.
func (b *builder) scratchDir(key string) string {
	return filepath.Join(b.scratch, fmt.Sprintf("sandboxforge-%d-%s-%s", b.uid, key, digestOf(b.store.Dir)[:12]))
}

func freeSpace(dir string) (uint64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// writeSynced writes a file that is on disk when it returns.
func writeSynced(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncPath flushes a file or a directory.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
