//go:build linux

package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// diskInfo is what qemu-img says of a disk image.
type diskInfo struct {
	Format      string `json:"format"`
	VirtualSize int64  `json:"virtual-size"`
	Backing     string `json:"backing-filename"`
}

// parseDiskInfo reads the output of `qemu-img info --output=json`.
func parseDiskInfo(out []byte) (diskInfo, error) {
	var i diskInfo
	if err := json.Unmarshal(out, &i); err != nil {
		return i, fmt.Errorf("qemu-img info printed no usable JSON: %w", err)
	}
	if i.Format == "" || i.VirtualSize <= 0 {
		return diskInfo{}, fmt.Errorf("qemu-img info printed no format or size")
	}
	return i, nil
}

func (b *Backend) inspectDisk(ctx context.Context, path, format string) (diskInfo, error) {
	// With the format given, nothing is guessed from content a guest could
	// have written. --force-share: it may be in use.
	out, err := b.runTool(ctx, b.qemuImg(), "info", "--force-share", "--output=json", "-f", format, "--", path)
	if err != nil {
		return diskInfo{}, err
	}
	return parseDiskInfo(out)
}

// imageOf is the image of a VM that is to be made: the one that its saved state
// was made from, if it begins in one.
func (b *Backend) imageOf(s backend.Spec) (Image, error) {
	if s.From == "" {
		return b.find(s.Image, arch(s))
	}
	r, err := readState(s.From)
	if err != nil {
		return Image{}, unfit(err, s.From, "it is missing, half-made or damaged")
	}
	if err := checkImage(r.Image); err != nil {
		return Image{}, unfit(err, s.From, "its image is missing")
	}
	return r.Image, nil
}

// createClone makes the disk of a VM that begins in a saved state. It has the
// state's size: the guest would not see another one, see load.
func (b *Backend) createClone(ctx context.Context, path, dir string, record *vmRecord) error {
	s := record.Spec
	state, err := b.useState(ctx, s, dir)
	if err != nil {
		return err
	}
	record.Parent, record.Layers = s.From, state.Layers+1
	record.DiskFrom = state.Saved.DiskSize
	record.DiskBytes = (max(s.DiskBytes, record.DiskFrom) + 511) &^ 511
	// -u: the disk below was checked just now and is never written to.
	_, err = b.runTool(ctx, b.qemuImg(), "create", "-q", "-u", "-f", "qcow2",
		"-F", "qcow2", "-b", filepath.Join(s.From, stateDisk), "--", path, strconv.FormatInt(record.DiskFrom, 10))
	return err
}

// beginAnew gives a VM that begins in a saved state, and was started before, the
// disk of that state again: the guest that is loaded has the file system of
// that moment in its memory, and would wreck one that went on.
func (b *Backend) beginAnew(ctx context.Context, dir string, record *vmRecord) error {
	if record.Spec.From == "" {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(dir, runFile)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	old := record.disk(dir)
	record.Disk = ""
	for _, path := range []string{old, record.disk(dir)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := b.createClone(ctx, record.disk(dir), dir, record); err != nil {
		return err
	}
	return writeJSON(filepath.Join(dir, vmFile), record, true)
}

// createOverlay makes a qcow2 disk over the image's root, at least size bytes
// large, and returns its size.
func (b *Backend) createOverlay(ctx context.Context, path string, img Image, size int64) (int64, error) {
	format := img.RootFormat
	if format == "" {
		format = "raw"
	}
	base := int64(0)
	if format == "raw" {
		st, err := os.Stat(img.Root)
		if err != nil {
			return 0, err
		}
		base = st.Size()
	} else {
		i, err := b.inspectDisk(ctx, img.Root, format)
		if err != nil {
			return 0, err
		}
		base = i.VirtualSize
	}
	size = max(size, base)
	// virtio-blk counts in sectors of 512 bytes.
	size = (size + 511) &^ 511
	if _, err := b.runTool(ctx, b.qemuImg(), "create", "-q", "-f", "qcow2",
		"-F", format, "-b", img.Root, "--", path, strconv.FormatInt(size, 10)); err != nil {
		return 0, err
	}
	i, err := b.inspectDisk(ctx, path, "qcow2")
	if err != nil {
		return 0, err
	}
	if i.VirtualSize != size || i.Backing != img.Root {
		return 0, fault.New(fault.BackendCommandFailed, "qemu-img made another disk than asked for").
			With("asked_bytes", size).With("made_bytes", i.VirtualSize).With("backing", i.Backing)
	}
	return size, nil
}
