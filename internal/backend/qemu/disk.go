//go:build linux

package qemu

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"

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
