package workspace

import (
	"context"
	"errors"
	"io"
	"io/fs"
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

// CopyFrom copies a file or a directory tree from the guest, as cp -r does:
// into the local path if that is a directory, else to it; parents are made.
// Existing regular files are replaced, symlinks and directories never. What
// the host does not take from a guest is refused: a fault PATH_NOT_ALLOWED for
// a single file, an entry of Refused within a tree.
func CopyFrom(ctx context.Context, r CopyRequest) (*CopyResult, error) {
	remote, err := cleanRemote(r.Remote)
	if err != nil {
		return nil, err
	}
	src, err := r.Guest.Stat(ctx, remote, false)
	if errors.Is(err, ErrNotFound) {
		return nil, fault.New(fault.InvalidArgument, "there is no %q in the guest", remote).Next("give the path of an existing file or directory in the guest")
	}
	if err != nil {
		return nil, guestFault(err, "%q cannot be read in the guest", remote)
	}
	if src.Type != TypeDir && src.Type != TypeRegular || src.Error != "" {
		return nil, fault.New(fault.InvalidArgument, "%q is neither a regular file nor a directory in the guest", remote)
	}
	if src.Type != TypeDir && r.RemoteIsDir {
		return nil, fault.New(fault.InvalidArgument, "%q is not a directory in the guest", remote)
	}
	root, err := r.Local.Open()
	if err != nil {
		return nil, localFault(err, r.Local.Path())
	}
	defer root.Close()
	dest, err := copyDestination(root, &r, path.Base(remote), src.Type == TypeDir)
	if err != nil {
		return nil, err
	}
	res := newCopyResult(dest.Path(), remote)
	w := &hostWriter{root: root, base: dest.Rel, trust: r.Trust, refused: &res.Refused, skipped: &res.Skipped}
	if src.Type == TypeRegular {
		n := guestNode(src, true, nil)
		if why := w.refuse(".", n); why != "" {
			return nil, fault.New(fault.PathNotAllowed, "%q is not taken from the guest: %s", dest.Path(), why).
				Next("choose another local_path, or have the operator allow it with sync.allow_refused")
		}
		err := w.fetch(ctx, r.Guest, path.Dir(remote), map[string]string{path.Base(remote): "."}, Tree{path.Base(remote): n}, r.Progress)
		if err != nil {
			return nil, err
		}
		if w.files == 0 {
			return nil, fault.New(fault.BackendCommandFailed, "%q was not copied", remote).With("problems", res.Skipped)
		}
		res.Files, res.Bytes = w.files, w.bytes
		return res.finish(), nil
	}
	scan, err := scanGuest(ctx, r.Guest, remote, nil, true, nil)
	if err != nil {
		return nil, err
	}
	res.Refused = append(res.Refused, scan.bad...)
	if err := w.tree(ctx, r.Guest, remote, scan.tree, r.Progress); err != nil {
		return nil, err
	}
	res.Files, res.Bytes = w.files, w.bytes
	return res.finish(), nil
}

// copyDestination applies cp's rule for an existing directory.
func copyDestination(root *hostpath.Dir, r *CopyRequest, base string, srcIsDir bool) (hostpath.Location, error) {
	l := r.Local
	kind := Other
	if n, err := describeLocal(root, l); err == nil {
		kind = n.Kind
	} else if fault.Is(err, fault.PathNotAllowed) {
		return l, err
	}
	switch {
	case kind == Dir || kind == Other && r.LocalIsDir && !srcIsDir:
		if base == "/" {
			return l, fault.New(fault.InvalidArgument, "the guest's root directory as a whole is not copied")
		}
		if err := hostpath.CheckName(base); err != nil {
			return l, fault.Wrap(err, fault.PathNotAllowed, "%q cannot be a file name on this host", clip(base))
		}
		return l.Join(base), nil
	case kind == File && (srcIsDir || r.LocalIsDir):
		return l, fault.New(fault.InvalidArgument, "%q is a file", l.Path()).Next("give a local_path that is a directory or does not exist")
	}
	return l, nil
}

// hostWriter writes files of a guest below base. Paths are relative to base;
// "." is base itself, for a single file.
type hostWriter struct {
	root    *hostpath.Dir
	base    string
	trust   hostpath.Trust
	fresh   bool // never replace anything
	refused *[]Problem
	skipped *[]Problem
	files   int
	bytes   int64
	sums    map[string]string // by path, if not nil
}

func (w *hostWriter) at(p string) string { return hostpath.Location{Rel: w.base}.Join(p).Rel }

// refuse says why a path is not taken from the guest.
func (w *hostWriter) refuse(p string, n *Node) string {
	full := w.at(p)
	if err := hostpath.CheckRel(full); err != nil {
		return err.Error()
	}
	if why, refused := w.trust.Check(full); refused {
		return why
	}
	if strings.HasPrefix(path.Base(full), hostpath.TempPrefix) {
		return "the name is reserved for files that are being written"
	}
	if n.Kind == Symlink {
		return safeLink(p, n.Target, func(to string) (string, bool) { return w.trust.Check(w.at(to)) })
	}
	return ""
}

// tree writes a scanned tree.
func (w *hostWriter) tree(ctx context.Context, g Guest, remote string, t Tree, progress Progress) error {
	dir, err := w.root.MakeAll(w.base)
	if err != nil {
		return localFault(err, w.base)
	}
	defer dir.Close()
	clash := map[string]string{}
	paths := unionPaths(nil, t)
	if dir.CaseInsensitive() {
		clash = clashes(paths, nil)
	}
	names := map[string][]string{}
	for _, p := range paths {
		names[path.Dir(p)] = append(names[path.Dir(p)], path.Base(p))
	}
	bare := map[string]bool{}
	for d, list := range names {
		if sub, err := dir.Walk(d); err == nil { // what is there counts too
			if more, err := sub.Names(); err == nil {
				list = append(list, more...)
			}
			sub.Close()
		}
		bare[d] = hostpath.LooksBare(list)
	}
	files := map[string]string{}
	var links []string
	reported := ""
	for _, p := range paths {
		n := t[p]
		why := w.refuse(p, n)
		for d := path.Dir(p); why == ""; d = path.Dir(d) {
			if bare[d] {
				why = hostpath.BareRepositoryReason
			}
			if d == "." {
				break
			}
		}
		if other, ok := clash[p]; ok && why == "" {
			why = "the host's file system takes the name for the same as " + other
		}
		switch {
		case n.Kind == Other:
			*w.skipped = append(*w.skipped, Problem{p, n.Err})
		case why != "":
			if reported == "" || !strings.HasPrefix(p, reported+"/") {
				*w.refused = append(*w.refused, Problem{clip(p), why})
				reported = p
			}
		case n.Kind == Dir:
			sub, err := dir.MakeAll(p)
			if err != nil {
				*w.skipped = append(*w.skipped, Problem{p, plainError(err)})
				continue
			}
			sub.Close()
			if parent, name, err := dir.Parent(p); err == nil {
				parent.Chmod(name, guestMode(n)) //nolint:errcheck // a mode is a nicety
				parent.Close()
			}
		case n.Kind == File:
			files[p] = p
		case n.Kind == Symlink:
			links = append(links, p)
		}
	}
	if err := w.fetch(ctx, g, remote, files, t, progress); err != nil {
		return err
	}
	for _, p := range links {
		parent, name, err := dir.Parent(p)
		if err == nil {
			err = parent.CommitLink(t[p].Target, name, w.mayReplace)
			parent.Close()
		}
		if err != nil {
			*w.skipped = append(*w.skipped, Problem{p, plainError(err)})
			continue
		}
		w.files++
	}
	return nil
}

var errIsLink = errors.New("there is a symbolic link on the host, which is not replaced")

func (w *hostWriter) mayReplace(current fs.FileInfo) error {
	switch {
	case current == nil:
		return nil
	case w.fresh:
		return hostpath.ErrExists
	case current.Mode()&fs.ModeSymlink != 0:
		return errIsLink
	}
	return nil
}

// fetch receives files, named by their paths in the guest, and writes each to
// its path below base.
func (w *hostWriter) fetch(ctx context.Context, g Guest, remote string, to map[string]string, t Tree, progress Progress) error {
	var names []string
	var need int64
	for p := range to {
		names = append(names, p)
		need += t[p].Stamp.Size
	}
	slices.SortFunc(names, comparePaths)
	if err := checkFree(w.root.Path(), need); err != nil {
		return err
	}
	cache := &dirCache{root: w.root, make: true}
	defer cache.close()
	var got int64
	failed, err := receive(ctx, g, remote, names, func(p string) *Node { return t[p] }, func(p string, n *Node, r io.Reader) error {
		dir, name, err := cache.parent(w.at(to[p]))
		if err != nil {
			return &fileError{plainError(err)}
		}
		temp, sum, err := writeTemp(dir, n, r, guestMode(n))
		if err != nil {
			return err
		}
		if w.fresh {
			err = temp.CommitNew(name, unixNano(n.Stamp.MTime))
			temp.Abort()
		} else {
			err = temp.Commit(name, unixNano(n.Stamp.MTime), w.mayReplace)
		}
		if err != nil {
			return hostWriteError(err)
		}
		w.files++
		w.bytes += n.Stamp.Size
		got += n.Stamp.Size
		progress.report("receive", got, need)
		if w.sums != nil {
			w.sums[p] = hexSum(sum)
		}
		return nil
	})
	*w.skipped = append(*w.skipped, failed...)
	return err
}
