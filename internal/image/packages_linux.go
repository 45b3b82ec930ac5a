package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"

	"sandboxforge/internal/fault"
)

// packagesStage makes the archive of an installed system unless it is there,
// and then removes the archives of earlier recipes of the same image.
func (b *builder) packagesStage(ctx context.Context, work, target string) error {
	if _, err := os.Stat(target); err == nil {
		b.opt.report(Progress{Stage: "packages", Message: "packages are cached", Fraction: packagesShare})
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return err
	}
	scratch, mode := work, "root"
	if b.uid != 0 {
		scratch, mode = b.scratchDir(filepath.Base(work)), "unshare"
		if err := os.Mkdir(scratch, 0o711); err != nil {
			return err
		}
		if err := os.Chmod(scratch, 0o711); err != nil { // whatever the umask
			return err
		}
	}
	half := filepath.Join(work, "packages.tar.zst")
	f, err := os.OpenFile(half, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := zstd.NewWriter(f, zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return err
	}
	progress := packageProgress{report: b.opt.report}
	err = b.run(ctx, child{
		argv:   b.mmdebstrap(mode),
		env:    []string{"TMPDIR=" + scratch},
		stdout: z,
		line: func(s string) {
			b.opt.logger().Debug("mmdebstrap", "line", s)
			progress.line(s)
		},
	})
	// Close also when the run failed, for the encoder's goroutines.
	err = errors.Join(err, z.Close())
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err != nil {
		return subordinate(err, b.store.Dir)
	}
	if err := os.Rename(half, target); err != nil {
		return err
	}
	if err := syncPath(filepath.Dir(target)); err != nil {
		return err
	}
	b.removeOldPackages(target)
	return nil
}

// mmdebstrap is the command line. It names no mirror: the distribution's own,
// reached as the host's apt is set up to.
func (b *builder) mmdebstrap(mode string) []string {
	r := b.recipe
	argv := []string{
		b.tools.find("mmdebstrap"), "--mode=" + mode, "--format=tar", "--verbose", "--variant=" + r.Variant,
		"--architectures=" + r.Arch, "--include=" + strings.Join(r.Packages, ","),
		// The image has an initrd of its own; making one takes seconds.
		"--dpkgopt=path-exclude=/etc/kernel/postinst.d/initramfs-tools",
		"--dpkgopt=path-exclude=/etc/kernel/postrm.d/initramfs-tools",
	}
	for _, p := range r.PathExcludes {
		argv = append(argv, "--dpkgopt=path-exclude="+p)
	}
	return append(argv, "--customize-hook="+customizeHook, r.Suite, "-")
}

// subordinate recognises a user without ranges of subordinate users, which
// mmdebstrap only states. An image that root has built belongs to root, in
// root's own store unless it is told another.
func subordinate(err error, store string) error {
	if !strings.Contains(err.Error(), "/etc/subuid") && !strings.Contains(err.Error(), "newuidmap") {
		return err
	}
	return fault.Wrap(err, fault.BackendUnavailable, "guest images cannot be built as this user").
		Because("the user has no range of subordinate user and group ids").
		Next("sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER").
		Next("or let root build it into your store: sudo env SANDBOX_IMAGE_DIR=%s sandboxforge image build, then sudo chown -R $USER %[1]s", store)
}

// removeOldPackages keeps one archive per image. A failure costs only disk.
func (b *builder) removeOldPackages(keep string) {
	prefix := lockName(b.recipe.base(), b.recipe.Arch) + "-"
	entries, err := os.ReadDir(filepath.Dir(keep))
	if err != nil {
		return
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && e.Name() != filepath.Base(keep) {
			if err := os.Remove(filepath.Join(filepath.Dir(keep), e.Name())); err != nil {
				b.opt.logger().Warn("an old package archive could not be removed", "error", err)
			}
		}
	}
}
