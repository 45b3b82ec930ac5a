package template

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// lockRetry is how often a busy lock is tried again: nothing announces that
// another process gave it back.
const lockRetry = 100 * time.Millisecond

const noteSuffix = ".making"

func (s *Store) lockPath(key string) string {
	return filepath.Join(s.Dir, lockDir, key[:keyDigits])
}

// tryLock takes the lock of a key if it is free; ErrBusy if not.
func (s *Store) tryLock(key string) (unlock func(), err error) {
	path := s.lockPath(key)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fault.Wrap(err, fault.Internal, "cannot create %s", filepath.Dir(path)).
			Next("make %s writable, or set SANDBOX_IMAGE_DIR to a directory that is", s.Dir)
	}
	l := flock.New(path)
	ok, err := l.TryLock()
	if err != nil {
		l.Close()
		return nil, fault.Wrap(err, fault.Internal, "cannot lock %s", path)
	}
	if !ok {
		l.Close()
		return nil, ErrBusy
	}
	// The file stays: removing it would let two holders lock two files.
	return func() { l.Close() }, nil
}

// lock waits for the lock of a key until ctx ends, and tells p what its holder
// does meanwhile.
func (s *Store) lock(ctx context.Context, key string, p backend.Progress) (unlock func(), err error) {
	tick := time.NewTicker(lockRetry)
	defer tick.Stop()
	told := time.Time{}
	for {
		if unlock, err := s.tryLock(key); err != ErrBusy {
			return unlock, err
		}
		if now := time.Now(); now.Sub(told) >= time.Second {
			told = now
			p.Report("template", "waiting for the template that another call makes"+s.readNote(key))
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}
