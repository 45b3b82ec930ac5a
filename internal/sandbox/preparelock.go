package sandbox

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

// prepareLock is the file in an instance's directory that its preparing process
// has locked; the lock ends with the process.
const prepareLock = "prepare.lock"

// prepareRetry is how often a busy lock is tried again: nothing announces that
// another process gave it back.
const prepareRetry = 100 * time.Millisecond

// lockPreparing keeps calls apart that change what an instance's services are
// told and where that is written, in this process and in others. What the lease
// says must be read again under the lock. The error is that of ctx, or a fault.
func (s *Service) lockPreparing(ctx context.Context, l store.Lease) (unlock func(), err error) {
	here, err := s.preparing.lock(ctx, l.InstanceID)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			here()
		}
	}()
	f := flock.New(filepath.Join(s.instanceDir(l.BackendInstanceName), prepareLock), flock.SetPermissions(0o600))
	for told := false; ; {
		ok, err := f.TryLock()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			// Without a directory there is no VM any more: the lease will say so.
			return here, nil
		case err != nil:
			f.Close()
			return nil, fault.Wrap(err, fault.Internal, "cannot lock %s", f.Path())
		case ok:
			// The file stays: removing it would let two holders lock two files.
			return func() { f.Close(); here() }, nil
		}
		if !told {
			told = true
			report(ctx, Progress{Stage: "waiting", Message: "another process prepares this instance, or syncs from it"})
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(prepareRetry):
		}
	}
}
