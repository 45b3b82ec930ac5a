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

// Delete implements backend.Backend.
func (b *Backend) Delete(ctx context.Context, name string) error {
	if err := backend.CheckName(name); err != nil {
		return err
	}
	unlock, err := b.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	return b.remove(ctx, name)
}

// target is a machine that is to go: one with our marker for the name, or the
// one that the record names.
type target struct {
	machineInfo
	token string
	ours  string // the name that only we can have given it
}

// remove removes all that belongs to a name. The name's lock is held.
func (b *Backend) remove(ctx context.Context, name string) error {
	r, rerr := b.readRecord(name)
	if errors.Is(rerr, fs.ErrNotExist) {
		r = record{}
	}
	var names []string
	if r.Machine != "" {
		names = []string{r.Machine}
	}
	all, err := b.list(ctx, names)
	if err != nil {
		return err
	}
	for _, m := range all {
		t := target{machineInfo: m, token: randomHex(16), ours: randomHex(16)} // what no machine has
		if mark, ok := b.ours(m); ok && mark.Name == name {
			t.token = mark.Token
		} else if r.Machine != "" && m.Name == r.Machine {
			t.ours = r.Machine
		} else {
			continue
		}
		if err := b.removeMachine(ctx, name, t); err != nil {
			return err
		}
	}
	if r.ID != "" {
		// The list did not have it, so neither marker nor name are ours any more:
		// somebody took it for himself, and its disk is in our directory.
		if m, found, err := b.find(ctx, r.ID); err != nil {
			return err
		} else if found {
			return fault.New(fault.BackendCommandFailed, "the machine %q (%.40q in Hyper-V) was left alone", name, m.Name).
				Because("its name and its notes, where SandboxForge keeps its marker, were changed").
				Next("remove it with Hyper-V Manager, then delete the VM again")
		}
	}
	if errors.Is(rerr, fs.ErrNotExist) {
		return nil
	}
	if err := removeTree(b.dir(name)); err != nil {
		return fault.Wrap(err, fault.BackendCommandFailed, "the files of the VM %s cannot be removed", name).
			Because("another process has them open").
			Next("close what has files in %s open, then delete the VM again", b.dir(name))
	}
	return nil
}

// removeMachine cuts the power and removes the machine's entry.
func (b *Backend) removeMachine(ctx context.Context, name string, t target) error {
	// Whoever watches the machine learns that its end was wanted. There may be
	// no directory left to say it in.
	os.WriteFile(filepath.Join(b.dir(name), endingFile), nil, 0o600)
	id := map[string]any{"id": t.ID, "token": t.token, "name": t.ours}
	if t.runs() {
		if err := b.turnOff(ctx, id); err != nil {
			return b.unlessGone(ctx, t.ID, err)
		}
	}
	var gone struct {
		Disks []string `json:"disks"`
	}
	if err := b.whole(ctx, "remove", id, &gone); err != nil {
		return b.unlessGone(ctx, t.ID, err)
	}
	for _, path := range gone.Disks {
		if path != "" && !within(b.dir(name), path) {
			b.c.Logger.Warn("a removed machine had a disk that is not SandboxForge's; it was left", "vm", name, "disk", path)
		}
	}
	return b.settled(ctx, t.ID)
}

// within: the path lies in the directory. Windows does not tell cases apart.
func within(dir, path string) bool {
	rel, err := filepath.Rel(strings.ToLower(dir), strings.ToLower(path))
	return err == nil && filepath.IsLocal(rel)
}

// unlessGone is nil if the machine is not there any more: somebody else was
// faster.
func (b *Backend) unlessGone(ctx context.Context, id string, err error) error {
	if _, found, ferr := b.find(ctx, id); ferr == nil && !found {
		return nil
	}
	return err
}

// offLimit bounds the wait for a machine whose power was cut, and offAgain is
// when it is cut once more.
const (
	offLimit = time.Minute
	offAgain = 5 * time.Second
)

// turnOff cuts the power and returns when the machine holds nothing any more.
func (b *Backend) turnOff(ctx context.Context, id map[string]any) error {
	until := time.Now().Add(offLimit)
	var cut time.Time
	var err error
	for {
		if time.Since(cut) > offAgain {
			err = b.whole(ctx, "stop", id, nil)
			cut = time.Now()
		}
		m, found, ferr := b.find(context.WithoutCancel(ctx), id["id"].(string))
		switch {
		case ferr == nil && (!found || !m.runs()):
			return nil
		case time.Now().After(until):
			return fault.Wrap(errors.Join(err, ferr), fault.BackendCommandFailed, "the machine stays in the state %q", m.State).
				Next("end it with Hyper-V Manager, or restart the service vmms")
		case err != nil && fault.Is(err, fault.BackendUnavailable):
			return err // no rights, no vmms: the next try would say the same
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(b.c.Poll, 200*time.Millisecond)):
		}
	}
}

// settled waits until Hyper-V does not show the machine any more.
func (b *Backend) settled(ctx context.Context, id string) error {
	for {
		_, found, err := b.find(ctx, id)
		if err != nil || !found {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(min(b.c.Poll, 200*time.Millisecond)):
		}
	}
}
