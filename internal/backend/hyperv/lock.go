package hyperv

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// lockPause is the pause between tries to get a lock that another process has.
const lockPause = 10 * time.Millisecond

// lock takes the lock of a VM. There are few lock files, so that they do not
// become many, and two VMs may share one and wait for each other.
func (b *Backend) lock(ctx context.Context, name string) (unlock func(), err error) {
	h := fnv.New32a()
	h.Write([]byte(name))
	return b.lockFile(ctx, fmt.Sprintf("%02x", h.Sum32()%256))
}

// lockBase is held while a disk is made on the base: two at once can fail with
// a sharing violation.
func (b *Backend) lockBase(ctx context.Context) (unlock func(), err error) {
	return b.lockFile(ctx, "base")
}

// lockFile locks a file of its own: on Windows a lock keeps others from reading.
func (b *Backend) lockFile(ctx context.Context, file string) (unlock func(), err error) {
	dir := filepath.Join(b.c.StorageDir, ".locks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	l := flock.New(filepath.Join(dir, file))
	if _, err := l.TryLockContext(ctx, lockPause); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, err
	}
	return func() { l.Close() }, nil
}
