package standin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A virtual disk of the stand-in is a file with a mark and a description; it
// has no content that a guest could read.
const diskMark = "vhdxfile stand-in "

type disk struct {
	ID       guid   `json:"id"`
	Size     int64  `json:"size"`
	Kind     string `json:"kind"` // Dynamic, Differencing
	Parent   string `json:"parent,omitempty"`
	ParentID guid   `json:"parent_id,omitempty"`
}

// MakeDisk writes a dynamic disk of so many bytes, as a base for others.
func MakeDisk(path string, size int64) error {
	return writeDisk(path, disk{ID: newGUID(), Size: size, Kind: "Dynamic"})
}

func writeDisk(path string, d disk) error {
	b, err := json.Marshal(d)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append([]byte(diskMark), b...))
	return errors.Join(err, f.Close())
}

// readDisk fails with the HRESULT that Windows would give.
func readDisk(path string) (disk, uint32) {
	b, err := head(path)
	if errors.Is(err, fs.ErrNotExist) {
		return disk{}, eFileNotFound
	}
	var d disk
	rest, ok := strings.CutPrefix(string(b), diskMark)
	if !ok && err == nil && (strings.HasPrefix(string(b), "vhdxfile") || strings.HasPrefix(string(b), "QFI\xfb")) {
		if d, err := imageInfo(path); err == nil {
			return d, 0
		}
	}
	if err != nil || !ok || json.Unmarshal([]byte(rest), &d) != nil {
		return disk{}, eNotADisk
	}
	return d, 0
}

// head is the beginning of a file, all of it for a disk without content.
func head(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, 4<<10))
}

// checkChain looks at a disk and those below it.
func checkChain(path string) uint32 {
	for range 64 {
		d, code := readDisk(path)
		if code != 0 || d.Kind != "Differencing" {
			return code
		}
		p, code := readDisk(d.Parent)
		switch {
		case code == eFileNotFound:
			return eParentMissing
		case code != 0:
			return code
		case p.ID != d.ParentID:
			return eIDMismatch
		}
		path = d.Parent
	}
	return eFail
}

func vhdError(c *invocation, category string, code uint32, format string, args ...any) *psError {
	e := vmError(c, "OperationFailed", category, code, format, args...)
	e.exception = vhdException
	if code == eInvalidArgument {
		e.id = "InvalidParameter," + c.class()
	}
	return e
}

func newVHD(c *invocation) ([]any, *psError) {
	paths := elements(c.get("Path"))
	if len(paths) != 1 {
		return nil, unknownHere("New-VHD of %d paths", len(paths))
	}
	path := text(paths[0])
	switch ext := strings.ToLower(filepath.Ext(path)); {
	case ext != ".vhdx" && ext != ".vhd":
		return nil, vhdError(c, "InvalidArgument", eInvalidArgument, "the extension of %s is none of a virtual disk", path)
	case !filepath.IsAbs(path):
		return nil, unknownHere("the relative path %s", path)
	}
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, vhdError(c, "NotSpecified", ePathNotFound, "The system cannot find the path specified.")
	}
	d := disk{ID: newGUID(), Size: c.num("SizeBytes"), Kind: "Dynamic"}
	if c.set == "Differencing" {
		parent := c.str("ParentPath")
		if strings.EqualFold(filepath.Ext(parent), ".avhdx") {
			return nil, vhdError(c, "InvalidArgument", eInvalidArgument, "%s is a checkpoint's disk", parent)
		}
		p, code := readDisk(parent)
		if code != 0 {
			return nil, vhdError(c, "NotSpecified", code, "the parent %s cannot be used", parent)
		}
		d.Kind, d.Parent, d.ParentID = "Differencing", parent, p.ID
		if !c.has("SizeBytes") {
			d.Size = p.Size
		}
		if d.Size < p.Size {
			return nil, vhdError(c, "InvalidArgument", eInvalidArgument, "the size is smaller than the parent's")
		}
	} else if c.set != "DynamicWithoutSource" {
		return nil, unknownHere("New-VHD with the parameter set %s", c.set)
	}
	if d.Size <= 0 || d.Size%4096 != 0 || d.Size > 64<<40 {
		return nil, vhdError(c, "InvalidArgument", eInvalidArgument, "%d is no size of a virtual disk", d.Size)
	}
	make := writeDisk
	if c.e.world.Real != nil && d.Kind == "Differencing" {
		make = makeChild
		if _, err := os.Lstat(path); err == nil {
			make = func(string, disk) error { return fs.ErrExist }
		}
	}
	err := make(path, d)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil, vhdError(c, "NotSpecified", eFileExists, "The file exists.")
	case err != nil:
		return nil, unknownHere("New-VHD: %v", err)
	}
	return []any{vhdObject(path, d)}, nil
}

func vhdObject(path string, d disk) *object {
	kind := enum{"VhdType", "Dynamic", 3}
	parent := any(nil)
	if d.Kind == "Differencing" {
		kind, parent = enum{"VhdType", "Differencing", 4}, d.Parent
	}
	size := int64(0)
	if st, err := os.Stat(path); err == nil {
		size = st.Size()
	}
	return newObject("VirtualHardDisk", "Path", path, "VhdFormat", enum{"VhdFormat", "VHDX", 3}, "VhdType", kind, "FileSize", size,
		"Size", d.Size, "MinimumSize", nil, "BlockSize", int64(2<<20), "ParentPath", parent, "DiskIdentifier", string(d.ID), "Attached", false, "DiskNumber", nil)
}

func getVHD(c *invocation) ([]any, *psError) {
	if c.set != "Path" {
		return nil, unknownHere("Get-VHD with the parameter set %s", c.set)
	}
	var out []any
	for _, p := range elements(c.get("Path")) {
		d, code := readDisk(text(p))
		if code != 0 {
			return nil, vhdError(c, "NotSpecified", code, "Getting the virtual disk %s failed", text(p))
		}
		out = append(out, vhdObject(text(p), d))
	}
	return out, nil
}

// DiskInfo describes a virtual disk of the stand-in.
type DiskInfo struct {
	Size   int64
	Parent string
}

// ReadDisk reads the description of a disk.
func ReadDisk(path string) (DiskInfo, error) {
	d, code := readDisk(path)
	if code != 0 {
		return DiskInfo{}, fmt.Errorf("%s: %#x", path, code)
	}
	return DiskInfo{d.Size, d.Parent}, nil
}
