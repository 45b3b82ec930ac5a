package supervisor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"sandboxforge/internal/fault"
)

// Running reports whether a supervisor holds the instance directory dir. It
// is true from before the VM starts until the process is no more.
func Running(dir string) (bool, error) {
	path := filepath.Join(dir, lockFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	lock := flock.New(path, flock.SetFlag(os.O_RDONLY))
	defer lock.Close()
	ok, err := lock.TryRLock()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // removed meanwhile
	}
	if err != nil {
		return false, err
	}
	return !ok, nil
}

// PID is the process that last supervised the VM of the instance directory dir,
// 0 if none is known. It is what that process recorded of itself: a hint.
func PID(dir string) int {
	b, err := readBounded(filepath.Join(dir, pidFile), 100)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return 0
	}
	return pid
}

// leaveTime is how long Remove lets a supervisor go by itself: its last
// callers may still be taking their answers.
const leaveTime = linger + 3*time.Second

// Remove removes an instance directory and what a dead supervisor left of its
// socket, after the VM was deleted. It waits for the directory's supervisor to
// leave and kills one that does not. A missing directory is success. When ctx
// ends first, the directory may be removed in part; call it again.
func Remove(ctx context.Context, dir, runDir, name string) error {
	if !validName.MatchString(name) || !filepath.IsAbs(dir) || !filepath.IsAbs(runDir) {
		return fault.New(fault.InvalidArgument, "cannot remove %q of VM %q", dir, name)
	}
	kill := time.Now().Add(leaveTime)
	for {
		on, err := Running(dir)
		if err != nil {
			return err
		}
		if !on {
			break
		}
		if !kill.IsZero() && time.Now().After(kill) && killHolder(dir) {
			kill = time.Time{}
		}
		select {
		case <-ctx.Done():
			return fault.Wrap(context.Cause(ctx), fault.RuntimeNotReady, "the supervisor of %q does not leave", name)
		case <-time.After(lockPause): // nothing announces the end of a process that is not ours
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	path := socketPath(runDir, name)
	if c, err := dialSocket(ctx, path); err == nil {
		c.Close()
		return nil // another directory's supervisor uses the name
	} else if !errors.Is(err, ErrNotRunning) {
		return nil // not ours
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// killHolder kills the process that holds dir's lock and reports whether it
// did. While the lock is held, the pid in the directory is of its holder, but
// for the moment in which a new holder has not removed its predecessor's.
func killHolder(dir string) bool {
	pid := PID(dir)
	if pid == 0 || pid == os.Getpid() {
		return false
	}
	// The handle (a pidfd on Linux) comes before the checks, so that what was
	// checked is what is killed, even if the pid is given away meanwhile.
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	defer p.Release()
	lock := filepath.Join(dir, lockFile)
	if on, err := Running(dir); err != nil || !on || !mayHold(pid, lock) {
		return false
	}
	return p.Kill() == nil
}
