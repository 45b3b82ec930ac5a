package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
	// ContainerImages are the references of preloaded container images.
	ContainerImages []string  `json:"container_images,omitempty"`
	Packages        []Package `json:"packages"`
}

// Artifact is one file of an image.
type Artifact struct {
	File   string `json:"file"`
	Size   int64  `json:"size"` // in bytes, holes included
	SHA256 string `json:"sha256"`
}

// artifactOf measures a file.
func artifactOf(ctx context.Context, path string) (Artifact, error) {
	f, err := os.Open(path)
	if err != nil {
		return Artifact{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, readerFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return f.Read(p)
	}))
	if err != nil {
		return Artifact{}, err
	}
	return Artifact{File: filepath.Base(path), Size: n, SHA256: hex.EncodeToString(h.Sum(nil))}, nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

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
		got, err := artifactOf(ctx, filepath.Join(i.Dir, want.File))
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
