package qemu

import (
	"context"
	"encoding/json"
	"time"

	"sandboxforge/internal/qmp"
)

// A write that the host's disk has no room for pauses a VM (QEMU's werror=
// enospc, its default): the guest loses nothing, but it waits without a word
// and nobody lets it go on. So it is tried again until there is room.

// fullPause is the pause between tries; tests shorten it.
var fullPause = 2 * time.Second

// diskFull says whether an event tells that the VM was paused for want of room
// on the host's disk.
func diskFull(e qmp.Event) bool {
	if e.Name != "BLOCK_IO_ERROR" {
		return false
	}
	var d struct {
		Action  string `json:"action"`
		NoSpace bool   `json:"nospace"`
	}
	return json.Unmarshal(e.Data, &d) == nil && d.Action == "stop" && d.NoSpace
}

// resume lets the VM go on whenever full tells that it waits for room on the
// host's disk, until ctx ends.
func (v *vm) resume(ctx context.Context, full <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-full:
		}
		v.b.c.Logger.Warn("the VM is paused: the host's disk is full", "vm", v.name)
		for runs := false; !runs; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(fullPause):
			}
			if !v.saving.TryLock() {
				continue // a save pauses and resumes it by itself
			}
			runs = v.tryResume(ctx)
			v.saving.Unlock()
		}
		v.b.c.Logger.Info("the VM goes on", "vm", v.name)
	}
}

// tryResume reports whether the VM runs, or is paused for another reason.
func (v *vm) tryResume(ctx context.Context) (done bool) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var st struct{ Status string }
	if err := v.control.Do(ctx, "query-status", nil, &st); err != nil {
		return false
	}
	if st.Status != "io-error" {
		return true
	}
	// Without room the same write fails again: only the next look tells.
	_ = v.control.Do(ctx, "cont", nil, nil)
	return false
}
