package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sandboxforge/internal/fault"
)

// manifestName is the file that makes a directory an image.
const manifestName = "manifest.json"

// manifestFormat is the version of manifest.json that this package writes.
const manifestFormat = 1

// Manifest describes a finished image.
type Manifest struct {
	Format  int       `json:"format"`
	Name    string    `json:"name"`
	Arch    string    `json:"arch"`
	Digest  string    `json:"digest"` // of the recipe
	Suite   string    `json:"suite"`
	Created time.Time `json:"created"`

	Kernel Artifact `json:"kernel"`
	Initrd Artifact `json:"initrd"`
	Root   Artifact `json:"root"`

	KernelRelease string `json:"kernel_release"`
	Cmdline       string `json:"cmdline"`
	AgentSHA256   string `json:"agent_sha256"`
	InitSHA256    string `json:"init_sha256"`
	// ContainerImages are in Docker from the start; Recipe is the name of the
	// recipe, where the image has another one.
	ContainerImages []ContainerImage `json:"container_images,omitempty"`
	Recipe          string           `json:"recipe,omitempty"`
	Packages        []Package        `json:"packages"`
}

// Artifact is one file of an image.
type Artifact struct {
	File string `json:"file"`
	Size int64  `json:"size"` // in bytes, holes included
	// Digest is "sha256:" and the hex sha256 of the file; or "blocks:" and that
	// of its blocks of 64 KiB that are not all zero, each after its offset in
	// eight bytes, big endian, which does not depend on where the file has holes.
	Digest string `json:"digest"`
}

// digestBlock is the unit of a block digest, in bytes.
const digestBlock = 64 << 10

// Prefixes of an artifact's digest.
const (
	sumPrefix    = "sha256:"
	blocksPrefix = "blocks:"
)

// artifactOf measures a file; blocks chooses the digest for mostly empty files.
func artifactOf(ctx context.Context, path string, blocks bool) (Artifact, error) {
	f, err := os.Open(path)
	if err != nil {
		return Artifact{}, err
	}
	defer f.Close()
	h := sha256.New()
	prefix := sumPrefix
	if blocks {
		prefix = blocksPrefix
	}
	zero := make([]byte, digestBlock)
	add := func(offset int64, block []byte) {
		if blocks && bytes.Equal(block, zero[:len(block)]) {
			return
		}
		if blocks {
			h.Write(binary.BigEndian.AppendUint64(nil, uint64(offset)))
		}
		h.Write(block)
	}
	buf := make([]byte, digestBlock)
	var size int64
	for {
		if err := ctx.Err(); err != nil {
			return Artifact{}, err
		}
		n, err := io.ReadFull(f, buf)
		add(size, buf[:n])
		size += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return Artifact{}, err
		}
	}
	return Artifact{File: filepath.Base(path), Size: size, Digest: prefix + hex.EncodeToString(h.Sum(nil))}, nil
}

// Image is a finished image on disk. Its files are never changed: instances
// put overlays over Root.
type Image struct {
	Name, Arch string
	// Digest is the recipe's, in hex; it names what is in the image.
	Digest string
	// Dir holds the files; Kernel, Initrd and Root are their full paths.
	Dir, Kernel, Initrd, Root string
	// Cmdline is the kernel command line that the image wants. A backend may
	// append to it.
	Cmdline  string
	Manifest Manifest
}

// openImage reads the manifest in dir and looks whether the files are there in
// their full size; it does not read them (see Verify).
func openImage(dir string) (*Image, error) {
	text, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return nil, err
	}
	var m Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("%s: %w", manifestName, err)
	}
	if m.Format != manifestFormat {
		return nil, fmt.Errorf("%s has format %d, this version knows %d", manifestName, m.Format, manifestFormat)
	}
	img := &Image{Name: m.Name, Arch: m.Arch, Digest: m.Digest, Dir: dir, Cmdline: m.Cmdline, Manifest: m}
	for _, a := range []struct {
		artifact Artifact
		path     *string
	}{{m.Kernel, &img.Kernel}, {m.Initrd, &img.Initrd}, {m.Root, &img.Root}} {
		if a.artifact.File == "" || filepath.Base(a.artifact.File) != a.artifact.File {
			return nil, fmt.Errorf("%s names a file %q", manifestName, a.artifact.File)
		}
		*a.path = filepath.Join(dir, a.artifact.File)
		info, err := os.Stat(*a.path)
		if err != nil {
			return nil, err
		}
		if info.Size() != a.artifact.Size {
			return nil, fmt.Errorf("%s has %d bytes, the manifest says %d", a.artifact.File, info.Size(), a.artifact.Size)
		}
	}
	return img, nil
}

// Verify reads all files of an image and compares their digests with the
// manifest. It takes a second or more per GiB; ctx ends it early.
func (i *Image) Verify(ctx context.Context) error {
	for _, want := range []Artifact{i.Manifest.Kernel, i.Manifest.Initrd, i.Manifest.Root} {
		got, err := artifactOf(ctx, filepath.Join(i.Dir, want.File), strings.HasPrefix(want.Digest, blocksPrefix))
		if err != nil {
			return err
		}
		if got != want {
			return fault.New(fault.ImageNotFound, "image %s is damaged: %s is not what was built", i.Name, want.File).
				Because("the file was changed or the disk lost data after the image was built").
				Next("run `sandboxforge image rm %s` and `sandboxforge image build %s`", i.Name, i.Name)
		}
	}
	return nil
}
