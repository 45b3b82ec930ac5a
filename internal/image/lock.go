package image

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"sandboxforge/internal/fault"
)

// lockRetry is how often a busy lock is tried again: flock(2) cannot be
// cancelled while it waits.
const lockRetry = 250 * time.Millisecond

// lock takes the lock called name, waiting for whoever has it until ctx ends.
// waiting is called once if it has to wait. The kernel gives the lock back when
// its holder dies.
func (s Store) lock(ctx context.Context, name string, waiting func()) (unlock func(), err error) {
	dir := filepath.Join(s.Dir, lockDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.Wrap(err, fault.Internal, "cannot create %s", dir).
			Next("make %s writable, or set SANDBOXFORGE_HOME to a directory that is", s.Dir)
	}
	l := flock.New(filepath.Join(dir, name))
	ok, err := l.TryLock()
	if err == nil && !ok {
		if waiting != nil {
			waiting()
		}
		_, err = l.TryLockContext(ctx, lockRetry)
	}
	if err != nil {
		l.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fault.Wrap(err, fault.Internal, "cannot lock %s", l.Path())
	}
	// The file stays: removing it would let two holders lock two files.
	return func() { l.Close() }, nil
}
