package qemu

import (
	"context"
	"errors"
	"hash/fnv"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// The locks here are open file description locks: unlike POSIX locks they
// survive fork and exec with the descriptor and are not dropped by closing
// another one; unlike flock(2) they can be queried without being taken, so
// that an Inspect never makes a Start fail.

// lockRange is the part of a file that a lock covers.
type lockRange struct{ start, len int64 }

// wholeFile is the range of a file with one lock.
var wholeFile = lockRange{0, 0}

func openLock(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
}

// tryLock takes the lock and reports whether it could.
func tryLock(f *os.File, r lockRange) (bool, error) {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: r.start, Len: r.len}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	return err == nil, err
}

// lockHeld reports whether another open file description holds the lock.
func lockHeld(f *os.File, r lockRange) (bool, error) {
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: r.start, Len: r.len}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return false, err
	}
	return l.Type != unix.F_UNLCK, nil
}

// nameRange is the byte that stands for a name. Two names with one hash merely
// wait for each other.
func nameRange(name string) lockRange {
	h := fnv.New64a()
	h.Write([]byte(name))
	return lockRange{int64(h.Sum64() >> 1 &^ 1), 1}
}

// lockName waits for the lock that serialises Create, Start and Delete of one
// VM across processes; close the file to release it. One file serves all names,
// a byte for each: a lock file per name would have to be removed, and removing
// lock files is a race. onBusy is as in lockWait.
func (b *Backend) lockName(ctx context.Context, name string, onBusy func()) (*os.File, error) {
	return lockWait(ctx, filepath.Join(b.c.StateDir, ".operations"), nameRange(name), onBusy)
}

// lockWait waits for a lock. onBusy, if not nil, is called once when somebody
// else holds it.
func lockWait(ctx context.Context, path string, r lockRange, onBusy func()) (*os.File, error) {
	f, err := openLock(path)
	if err != nil {
		return nil, err
	}
	// The kernel's blocking wait cannot be ended by a context, so this tries
	// again at short intervals.
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := tryLock(f, r)
		if ok {
			return f, nil
		}
		if err == nil {
			if onBusy != nil {
				onBusy()
				onBusy = nil
			}
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		f.Close()
		return nil, err
	}
}
