package workspace

import (
	"context"
	"errors"
	"io"
	"iter"
	"path"
	"strings"
	"time"

	"sandboxforge/internal/fault"
)

// Error kinds of a Guest.
var (
	// ErrNotFound: there is no such path.
	ErrNotFound = errors.New("no such file or directory in the guest")
	// ErrTruncated: a tree has more entries than were asked for.
	ErrTruncated = errors.New("the guest's tree is too large")
)

// Guest is what this package needs of a guest. Paths are absolute guest paths
// and may hold any bytes.
type Guest interface {
	// Stat describes one path, symlinks not followed; ErrNotFound.
	Stat(ctx context.Context, path string, hash bool) (Entry, error)
	// Tree walks a directory, symlinks not followed. Entry paths are relative
	// to the root. An unreadable part is an Entry with Error set. A missing
	// root is ErrNotFound.
	Tree(ctx context.Context, r TreeRequest) iter.Seq2[Entry, error]
	// Glob expands patterns, each to absolute entries.
	Glob(ctx context.Context, base string, patterns []string, max int) ([]GlobMatch, error)
	// PutTar unpacks a tar stream under a directory, which is made if it is
	// missing. Each file appears by rename. When r fails, what was unpacked so
	// far stays, and PutTar fails.
	PutTar(ctx context.Context, p PutTar, r io.Reader) (PutResult, error)
	// GetTar streams a tar of the named paths, relative to the root.
	GetTar(ctx context.Context, g GetTar) (io.ReadCloser, error)
	// Remove removes files and empty directories. A missing path is success.
	// failed has entries of the form "path: reason".
	Remove(ctx context.Context, root string, paths []string, recursive bool) (removed, failed []string, err error)
}

// EntryType is the kind of a guest's file.
type EntryType int

// The types.
const (
	TypeOther EntryType = iota
	TypeRegular
	TypeDir
	TypeSymlink
)

// Entry describes one file of the guest. All of it is the guest's word.
type Entry struct {
	Path       string
	Type       EntryType
	Mode       uint32 // 07777
	Size       int64
	MTime      time.Time
	CTime      time.Time
	Inode      uint64
	SHA256     []byte // if asked for
	LinkTarget string
	Error      string
}

// TreeRequest asks for a walk.
type TreeRequest struct {
	Root       string
	Exclude    []string // gitignore syntax
	Hash       bool     // hash regular files
	HashUnless []Entry  // but not these, as long as size, times and inode are the same
	MaxEntries uint64   // 0: the guest's default
}

// GlobMatch is the outcome of one pattern.
type GlobMatch struct {
	Pattern string
	Entries []Entry // absolute paths
	Error   string
}

// PutTar describes where a tar stream goes.
type PutTar struct {
	Root         string
	Owner        string // "": the guest's default user
	KeepExisting bool   // an existing file is kept and reported
}

// PutResult is what was unpacked.
type PutResult struct {
	Entries []Entry  // what was written, relative to the root
	Skipped []string // "path" or "path: reason"
}

// GetTar asks for a tar stream.
type GetTar struct {
	Root     string
	Paths    []string
	MaxBytes uint64 // 0: no bound
}

// Progress is told how far a stage is. It must not block and may be called
// from several goroutines; nil is allowed.
type Progress func(stage string, done, total int64)

func (p Progress) report(stage string, done, total int64) {
	if p != nil {
		p(stage, done, total)
	}
}

// cleanRemote checks a guest path that a caller named.
func cleanRemote(p string) (string, error) {
	bad := func(why string) error {
		return fault.New(fault.InvalidArgument, "the remote path %q %s", strings.ToValidUTF8(p, "�"), why).
			Next("give an absolute path in the guest, such as /workspace")
	}
	switch {
	case p == "":
		return "", bad("is empty")
	case strings.ContainsRune(p, 0):
		return "", bad("contains a NUL byte")
	case len(p) > 4096:
		return "", bad("is too long")
	case !path.IsAbs(p):
		return "", bad("is not absolute")
	}
	return path.Clean(p), nil
}
