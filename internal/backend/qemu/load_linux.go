package qemu

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/qmp"
)

// loadLimit bounds the loading of a saved state, which takes a tenth of a
// second on an idle host.
const loadLimit = 60 * time.Second

// stateStream gives QEMU a state to read. It is a pipe, since newer QEMUs want
// no descriptors of files; the copier ends when QEMU has read all or is gone.
func stateStream(dir string) (*os.File, error) {
	f, err := os.Open(filepath.Join(dir, stateDevices))
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		f.Close()
		return nil, err
	}
	go func() {
		defer f.Close()
		defer w.Close()
		io.Copy(w, f) //nolint:errcheck // QEMU says what it misses
	}()
	return r, nil
}

// load has QEMU read the saved state it was started for, and lets the guest go
// on with a disk of size bytes.
func (b *Backend) load(ctx context.Context, control *qmp.Client, was, size int64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, loadLimit, fmt.Errorf("QEMU did not load the saved state within %v", loadLimit))
	defer cancel()
	do := func(command string, args, result any) error {
		if err := control.Do(ctx, command, args, result); err != nil {
			return fault.Wrap(withShortage(err, err.Error()), fault.BackendCommandFailed, "QEMU refused %s while it loaded a saved state", command)
		}
		return nil
	}
	type capability struct {
		Capability string `json:"capability"`
		State      bool   `json:"state"`
	}
	if err := do("migrate-set-capabilities", map[string]any{"capabilities": []capability{{"x-ignore-shared", true}}}, nil); err != nil {
		return err
	}
	if err := do("migrate-incoming", map[string]any{"uri": fmt.Sprintf("fd:%d", fdState)}, nil); err != nil {
		return err
	}
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for {
		var st struct{ Status string }
		if err := do("query-status", nil, &st); err != nil {
			return err
		}
		if st.Status != "inmigrate" {
			break
		}
		var m struct {
			Status string
			Error  string `json:"error-desc"`
		}
		if err := do("query-migrate", nil, &m); err != nil {
			return err
		}
		if m.Status == "failed" {
			return fault.New(fault.BackendCommandFailed, "QEMU could not load the saved state: %s", m.Error)
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := do("cont", nil, nil); err != nil {
		return err
	}
	if size > was {
		// The guest knows the disk as it was saved; only a change that it is
		// told about makes it look.
		return do("block_resize", map[string]any{"node-name": rootNode, "size": size}, nil)
	}
	return nil
}
