package workspace

import (
	"context"
	"errors"
	"path"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/hostpath"
)

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
