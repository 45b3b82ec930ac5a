package hyperv

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// Start implements backend.Backend. A start that was begun is waited for also
// when ctx ends, and taken back.
func (b *Backend) Start(ctx context.Context, name string, o backend.StartOptions) (backend.Machine, error) {
	if err := backend.CheckName(name); err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	unlock, err := b.lock(ctx, name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	r, err := b.readRecord(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, notFound(name)
	case err != nil:
		return nil, brokenVM(name, err.Error())
	case !r.Made:
		return nil, brokenVM(name, "its creation did not come to an end")
	}
	k, err := b.readKeys(name)
	if err != nil {
		return nil, brokenVM(name, err.Error())
	}
	o.Progress.Report("start", "asking Hyper-V")
	m, found, err := b.find(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	info := b.describe(r, m, found)
	switch info.State {
	case backend.Running:
		return nil, fault.Wrap(backend.ErrRunning, fault.BackendCommandFailed, "the VM %s runs already", name)
	case backend.Broken:
		return nil, brokenVM(name, info.Detail)
	}
	// It lies on the base, and somebody may have made a checkpoint by hand: our
	// disk alone is then not what it was.
	if want := filepath.Join(b.dir(name), diskFile); len(m.Disks) != 1 || !strings.EqualFold(m.Disks[0], want) {
		return nil, brokenVM(name, "its machine has other disks than it was made with: a checkpoint was made by hand, or a disk added")
	}
	if err := os.Remove(filepath.Join(b.dir(name), endingFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	o.Progress.Report("start", "starting the machine")
	id := map[string]any{"id": r.ID, "token": r.Token, "name": r.Machine}
	began := time.Now().UTC()
	err = b.whole(ctx, "start", id, nil)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		// What is not known to have failed may run, or begin to.
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
		defer cancel()
		return nil, errors.Join(err, b.turnOffIfRunning(back, id))
	}
	return newMachine(b, r, k, began), nil
}

func brokenVM(name, why string) error {
	return fault.New(fault.BackendCommandFailed, "the VM %s is broken", name).Because("%s", why).Next("delete it")
}

// turnOffIfRunning takes a start back.
func (b *Backend) turnOffIfRunning(ctx context.Context, id map[string]any) error {
	m, found, err := b.find(ctx, id["id"].(string))
	if err != nil || !found || !m.runs() {
		return err
	}
	return b.turnOff(ctx, id)
}
