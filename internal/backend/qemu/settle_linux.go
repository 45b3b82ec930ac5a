package qemu

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// SettleState implements backend.StateKeeper.
func (b *Backend) SettleState(ctx context.Context, dir string) error {
	lock, err := lockState(ctx, dir, false)
	if errors.Is(err, fs.ErrNotExist) {
		return unfit(err, dir, "it is missing")
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	r, err := readState(dir)
	if err != nil {
		return unfit(err, dir, "it is half-made or damaged")
	}
	if err := settleFiles(ctx, dir, r); err != nil {
		return err
	}
	if err := settleBelow(r.Saved.Parent); err != nil {
		return err
	}
	r.Saved.Dir = ""
	if err := writeJSON(filepath.Join(dir, stateFile), r, true); err != nil {
		return err
	}
	b.setVerified(dir)
	return syncDir(filepath.Dir(dir))
}

// settleFiles has a state's own files written to the disk, and then reads them:
// what a digest says of where a file has holes is true from then on.
func settleFiles(ctx context.Context, dir string, r *stateRecord) error {
	for _, name := range []string{stateMemory, stateDevices, stateDisk} {
		path := filepath.Join(dir, name)
		if err := syncFile(path); err != nil {
			return err
		}
		digest, err := digestFile(ctx, path)
		if err != nil {
			return err
		}
		mark, err := markOf(path)
		if err != nil {
			return err
		}
		if was := r.Files[name]; mark.Inode != was.Inode || mark.Size != was.Size || mark.MTime != was.MTime {
			return unfit(nil, dir, "its file %s is not the one that was made", name)
		}
		mark.Digest = digest
		r.Files[name] = mark
	}
	return nil
}

// settleBelow does the same for the disks below a state's, and for the word
// that they are needed.
func settleBelow(dir string) error {
	for dir != "" {
		err := syncFile(filepath.Join(dir, stateDisk))
		if err == nil {
			err = syncDir(filepath.Join(dir, stateUsers))
		}
		if err == nil {
			err = syncDir(dir)
		}
		if err != nil {
			return err
		}
		r, err := diskRecord(dir)
		if err != nil {
			return err
		}
		dir = r.Saved.Parent
	}
	return nil
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
