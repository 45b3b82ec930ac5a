// Package guestbin holds the executables that go into a guest: the agent, its
// process shim and the initrd's init, for every guest architecture, gzipped and embedded.
//
// They are made by `go run ./internal/guestbin/gen` (part of `make build`)
// before the host's binaries are compiled; a host binary that was compiled
// without them works, but cannot build an image and says so.
//
//	agent, err := guestbin.Agent("amd64")
//
// The package knows nothing of images, backends or what the executables do.
package guestbin

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"

	"sandboxforge/internal/fault"
)

// The directory holds *.gz, which are not in the repository, and a README that
// keeps the pattern valid without them.
//
//go:embed bin
var files embed.FS

// Names of the executables.
const (
	AgentName = "agent"
	ShimName  = "shim"
	InitName  = "init"
)

// Architectures lists the guest architectures, as GOARCH names.
func Architectures() []string { return []string{"amd64", "arm64"} }

// FileName is the name of an executable's file below bin.
func FileName(name, arch string) string { return name + "-linux-" + arch + ".gz" }

// Agent returns the guest agent's executable.
func Agent(arch string) ([]byte, error) { return load(files, AgentName, arch) }

// Shim returns the executable that is the parent of each process that the agent
// starts.
func Shim(arch string) ([]byte, error) { return load(files, ShimName, arch) }

// Init returns the executable that is /init of the initrd.
func Init(arch string) ([]byte, error) { return load(files, InitName, arch) }

// Digest is the sha256 of an executable as it will be in the guest, in hex.
func Digest(executable []byte) string {
	sum := sha256.Sum256(executable)
	return hex.EncodeToString(sum[:])
}

func load(from fs.FS, name, arch string) ([]byte, error) {
	packed, err := fs.ReadFile(from, "bin/"+FileName(name, arch))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Wrap(err, fault.Internal, "this binary was compiled without the guest's %s for %s", name, arch).
			Because("the guest executables are built before the host's binaries, and were not").
			Next("run `make build` and use the binaries in bin/")
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Internal, "read the embedded %s for %s", name, arch)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, damaged(err, name, arch)
	}
	plain, err := io.ReadAll(z)
	if err != nil {
		return nil, damaged(err, name, arch)
	}
	return plain, nil
}

func damaged(err error, name, arch string) error {
	return fault.Wrap(err, fault.Internal, "the embedded %s for %s is damaged", name, arch).
		Next("remove internal/guestbin/bin/*.gz and run `make build`")
}
