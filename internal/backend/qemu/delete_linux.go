package qemu

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// Delete implements backend.Backend. When ctx ends in the middle, what is left
// is shown as broken, and another Delete finishes.
func (b *Backend) Delete(ctx context.Context, name string) error {
	if err := backend.CheckName(name); err != nil {
		return err
	}
	// A Start that hangs holds the operation lock: killing what it started
	// lets it come to an end.
	lock, err := b.lockName(ctx, name, func() { b.killRecorded(ctx, name) })
	if err != nil {
		return err
	}
	defer lock.Close()

	dir := b.dir(name)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return b.removeSockets(name)
	}
	var parent string
	if r, err := readVM(dir, name); err == nil {
		parent = r.Parent
	}
	// Without this file nothing starts the VM or takes it for whole, and its
	// owner sees that the end was wanted.
	if err := os.Remove(filepath.Join(dir, vmFile)); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return fault.Wrap(err, fault.BackendCommandFailed, "cannot delete the VM %s", name)
	}
	if err := b.killRunning(ctx, name); err != nil {
		return fault.Wrap(err, fault.BackendCommandFailed, "cannot stop the VM %s to delete it", name)
	}
	// Its owner may write a last file while this runs.
	for range 5 {
		if err = os.RemoveAll(dir); !errors.Is(err, syscall.ENOTEMPTY) {
			break
		}
	}
	if err != nil {
		return fault.Wrap(err, fault.BackendCommandFailed, "cannot remove the directory of the VM %s", name)
	}
	if err := b.collect(ctx, parent); err != nil {
		b.c.Logger.Warn("the rest of a removed state stays", "dir", parent, "error", err)
	}
	return b.removeSockets(name)
}

func (b *Backend) removeSockets(name string) error {
	for _, path := range []string{b.agentSocket(name), b.saveSocket(name)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fault.Wrap(err, fault.BackendCommandFailed, "cannot remove the socket of the VM %s", name)
		}
	}
	return nil
}

// killRecorded kills the process in run.json if it is the VM's still, without
// having the operation lock.
func (b *Backend) killRecorded(ctx context.Context, name string) {
	var r runRecord
	lock, err := os.Stat(filepath.Join(b.dir(name), lockFile))
	if err != nil || readJSON(filepath.Join(b.dir(name), runFile), &r) != nil || r.PID <= 1 {
		return
	}
	if err := killForeign(ctx, r.PID, func() bool { return r.current() && hasOpen(r.PID, lock) }); err != nil {
		b.c.Logger.Warn("cannot kill a VM", "vm", name, "pid", r.PID, "error", err)
	}
}

// killRunning ends whatever QEMU holds the VM's lock and waits for its end.
// The caller has the operation lock, so no Start is under way, and a holder is
// nothing but a QEMU of this VM.
func (b *Backend) killRunning(ctx context.Context, name string) error {
	path := filepath.Join(b.dir(name), lockFile)
	for {
		running, err := b.isRunning(name)
		if err != nil && !errors.Is(err, syscall.ENOTDIR) {
			return err
		}
		if !running {
			return nil
		}
		b.killRecorded(ctx, name)
		if running, err = b.isRunning(name); err != nil || !running {
			return err
		}
		lock, err := os.Stat(path)
		if err != nil {
			return err
		}
		for _, pid := range holders(lock) {
			if err := killForeign(ctx, pid, func() bool { return hasOpen(pid, lock) }); err != nil {
				return err
			}
		}
		// A holder that is not found is a process between fork and exec, and
		// lets go by itself.
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
