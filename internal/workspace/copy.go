package workspace

import (
	"context"
	"errors"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/hostpath"
)

// CopyRequest describes a copy in either direction.
type CopyRequest struct {
	Guest  Guest
	Local  hostpath.Location
	Remote string // absolute guest path
	Owner  string // of what is made in the guest
	// The path was written with a trailing slash: it has to be a directory,
	// and is made as one where it is the destination.
	LocalIsDir, RemoteIsDir bool
	Trust                   hostpath.Trust
	Progress                Progress
}

// CopyResult says what was copied.
type CopyResult struct {
	LocalPath  string    `json:"local_path"`  // where it really lies
	RemotePath string    `json:"remote_path"` // the same
	Bytes      int64     `json:"bytes"`       // of file contents
	Files      int       `json:"files"`       // symlinks included
	Refused    []Problem `json:"refused"`
	Skipped    []Problem `json:"skipped"`
	Status     string    `json:"status"` // ok, partial
}

func (r *CopyResult) finish() *CopyResult {
	r.Status = "ok"
	if len(r.Refused)+len(r.Skipped) > 0 {
		r.Status = "partial"
	}
	return r
}

func newCopyResult(local, remote string) *CopyResult {
	return &CopyResult{LocalPath: local, RemotePath: remote, Refused: []Problem{}, Skipped: []Problem{}}
}

// CopyTo copies a file or a directory tree into the guest, as cp -r does: into
// the remote path if that is a directory, else to it; parents are made.
// Existing files are replaced. Symlinks in the tree stay symlinks; special
// files are skipped and reported. On a cancel each file is whole or absent.
func CopyTo(ctx context.Context, r CopyRequest) (*CopyResult, error) {
	remote, err := cleanRemote(r.Remote)
	if err != nil {
		return nil, err
	}
	root, err := r.Local.Open()
	if err != nil {
		return nil, localFault(err, r.Local.Path())
	}
	defer root.Close()
	src, err := describeLocal(root, r.Local)
	if err != nil {
		return nil, err
	}
	if src.Kind != Dir && r.LocalIsDir {
		return nil, fault.New(fault.InvalidArgument, "%q is not a directory", r.Local.Path())
	}
	there, err := r.Guest.Stat(ctx, remote, false)
	if errors.Is(err, ErrNotFound) {
		there, err = Entry{}, nil
		if r.RemoteIsDir && src.Kind == File {
			there.Type = TypeDir // it becomes one
		}
	}
	if err != nil {
		return nil, guestFault(err, "%q cannot be read in the guest", remote)
	}
	if there.Type == TypeSymlink {
		return nil, fault.New(fault.InvalidArgument, "%q is a symbolic link in the guest to %q", remote, clip(there.LinkTarget)).
			Next("give the path that it stands for")
	}
	base := filepath.Base(r.Local.Path())
	if there.Type == TypeDir {
		remote = path.Join(remote, base)
	} else if there.Type != TypeOther && src.Kind == Dir {
		return nil, fault.New(fault.InvalidArgument, "%q is a file in the guest and %q a directory", remote, r.Local.Path()).
			Next("give a remote_path that is a directory or does not exist")
	}
	res := newCopyResult(r.Local.Path(), remote)
	if src.Kind == File {
		err = copyFileTo(ctx, &r, root, remote, src, res)
	} else {
		err = copyTreeTo(ctx, &r, root, remote, res)
	}
	if err != nil {
		return nil, err
	}
	return res, nil
}

func describeLocal(root *hostpath.Dir, l hostpath.Location) (*Node, error) {
	if l.Rel == "." {
		return &Node{Kind: Dir}, nil
	}
	parent, name, err := root.Parent(l.Rel)
	if err != nil {
		return nil, localFault(err, l.Path())
	}
	defer parent.Close()
	info, err := parent.Lstat(name)
	if err != nil {
		return nil, localFault(err, l.Path())
	}
	switch {
	case info.IsDir():
		return &Node{Kind: Dir}, nil
	case info.Mode().IsRegular():
		return &Node{Kind: File, Exec: info.Mode()&0o111 != 0, Stamp: stampOf(info)}, nil
	}
	return nil, fault.New(fault.PathNotAllowed, "%q is neither a regular file nor a directory, and symbolic links are not followed", l.Path())
}

func copyFileTo(ctx context.Context, r *CopyRequest, root *hostpath.Dir, remote string, src *Node, res *CopyResult) error {
	if remote == "/" {
		return fault.New(fault.InvalidArgument, "the remote path is the guest's root directory")
	}
	// The sender names entries by host paths, so it gets the parent directory
	// and a tree of one.
	parent, name, err := root.Parent(r.Local.Rel)
	if err != nil {
		return localFault(err, r.Local.Path())
	}
	defer parent.Close()
	s := newSender(ctx, parent, Tree{name: src}, r.Guest, path.Dir(remote), r.Owner, r.Progress)
	s.rename = map[string]string{name: path.Base(remote)}
	s.total = src.Stamp.Size
	for range maxRestarts + 1 {
		var put PutResult
		put, err = s.put([]string{name}, false)
		if err == nil && len(put.Entries) == 0 && len(s.failed) == 0 {
			return fault.New(fault.BackendCommandFailed, "%q was not written in the guest: %s", remote, clip(strings.Join(put.Skipped, "; ")))
		}
		if !errors.Is(err, errRestart) {
			break
		}
	}
	if errors.Is(err, errRestart) || err == nil && len(s.failed) > 0 {
		return fault.New(fault.InvalidArgument, "%q cannot be copied: it changes while it is read, or cannot be read", r.Local.Path()).
			With("problems", s.failed).Next("copy it when nothing writes to it")
	}
	if err != nil {
		return err
	}
	res.Files, res.Bytes = 1, s.content
	res.finish()
	return nil
}

func copyTreeTo(ctx context.Context, r *CopyRequest, root *hostpath.Dir, remote string, res *CopyResult) error {
	dir, err := root.Walk(r.Local.Rel)
	if err != nil {
		return localFault(err, r.Local.Path())
	}
	defer dir.Close()
	scan, err := scanHost(ctx, dir, &Request{Progress: r.Progress}, nil)
	if err != nil {
		return localFault(err, r.Local.Path())
	}
	res.Skipped = append(res.Skipped, scan.skipped...)
	var paths []string
	var total int64
	for p, n := range scan.tree {
		if n.Kind != Other {
			paths = append(paths, p)
		}
		if n.Kind == File {
			total += n.Stamp.Size
		}
	}
	slices.SortFunc(paths, comparePaths)
	unstable := map[string]int{}
	for {
		s := newSender(ctx, dir, scan.tree, r.Guest, remote, r.Owner, r.Progress)
		s.total = total
		put, err := s.put(paths, false)
		if errors.Is(err, errRestart) {
			// All is sent again: a copy has no memory of what arrived.
			if unstable[s.changed]++; unstable[s.changed] >= maxRestarts {
				res.Skipped = append(res.Skipped, Problem{s.changed, errChanging.Error()})
				paths = slices.DeleteFunc(paths, func(p string) bool { return p == s.changed })
			}
			continue
		}
		if err != nil {
			return err
		}
		res.Skipped = append(res.Skipped, s.failed...)
		why := reasonsOf(put.Skipped, paths)
		got := map[string]bool{}
		for _, e := range put.Entries {
			got[path.Clean(e.Path)] = true
		}
		for _, p := range paths {
			switch n := s.sent[p]; {
			case n == nil || n.Kind == Dir:
			case !got[p]:
				res.Skipped = append(res.Skipped, Problem{p, "not written in the guest: " + why[p]})
			default:
				res.Files++
				if n.Kind == File {
					res.Bytes += n.Stamp.Size
				}
			}
		}
		res.finish()
		return nil
	}
}
