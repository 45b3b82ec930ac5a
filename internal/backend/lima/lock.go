//go:build unix

package lima

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"sandboxforge/internal/fault"
)

// lockFiles is how many files serialise the operations. A file per name would
// have to be removed, which is a race; two names of one file merely wait for
// each other.
const lockFiles = 64

// operate waits for the lock that serialises what changes one VM, across
// processes. Close the file to release it; a command that inherits it holds it
// until it ends.
func (b *Backend) operate(ctx context.Context, name string) (*os.File, error) {
	for _, dir := range []string{b.cfg.StateDir, b.cfg.LimaHome} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fault.Wrap(err, fault.BackendUnavailable, "the lima backend's directory %s cannot be made", dir).
				Next("set SANDBOXFORGE_HOME to a directory that this user can write")
		}
	}
	h := fnv.New32a()
	h.Write([]byte(name)) //nolint:errcheck // never fails
	kind := "operations"
	if isBase(name) { // which take minutes, and nobody else is to wait
		kind = "bases"
	}
	return lockWait(ctx, filepath.Join(b.cfg.StateDir, fmt.Sprintf(".%s-%02x", kind, h.Sum32()%lockFiles)))
}

// lockWait waits for a lock on a file.
func lockWait(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	// The kernel's blocking wait cannot be ended by a context.
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if err = context.Cause(ctx); err != nil {
			break
		}
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	f.Close()
	return nil, err
}

// own takes the lock of a VM's owner; nil if another process has it. It is a
// lock of this process alone: commands do not inherit it.
func (b *Backend) own(name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(b.dir(name), ownerFile), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, err
	}
	return f, nil
}
