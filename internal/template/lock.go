package template

import (
	"context"
	"fmt"
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

// silence is how long a maker may give no sign of life before those who wait
// for it give up: it was stopped, or its host stands still. Tests shorten it.
var silence = 30 * time.Second

// lock waits for the lock of a key until ctx ends, and tells p what its holder
// does meanwhile. A holder that gives no sign of life is an error.
func (s *Store) lock(ctx context.Context, key string, p backend.Progress) (unlock func(), err error) {
	tick := time.NewTicker(lockRetry)
	defer tick.Stop()
	var told, sign time.Time
	alive := time.Now()
	for {
		if unlock, err := s.tryLock(key); err != ErrBusy {
			return unlock, err
		}
		now := time.Now()
		m, _ := s.readNote(key)
		if !m.At.Equal(sign) {
			sign, alive = m.At, now
		}
		if now.Sub(alive) > silence {
			return nil, fault.New(fault.RuntimeNotReady, "the process %d that makes the template has given no sign of life for %s", m.PID, silence).
				Because("it was stopped, or it hangs").
				Next("end that process")
		}
		if now.Sub(told) >= time.Second {
			told = now
			message := "waiting for the template that another call makes"
			if m.Message != "" {
				message += fmt.Sprintf(" (process %d: %.200s)", m.PID, m.Message)
			}
			p.Report("template", message)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}
