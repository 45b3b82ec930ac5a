package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sandboxforge/internal/fault"
)

// fsProbe names the file system type that holds a path and says whether it is
// one on which several processes cannot share a write-ahead log. The log's
// index is shared memory: over a network, or across the border of a VM, two
// hosts would each have their own and destroy the file.
type fsProbe func(path string) (fsType string, remote bool, err error)

// prepareLocation makes the database's directory (0700) and an empty file
// (0600, so that nobody else reads the configurations kept in it), and returns
// the path with symlinks resolved. It refuses a place that cannot work.
func prepareLocation(path string, probe fsProbe) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fault.New(fault.InvalidArgument, "the lease database's path %q is not absolute", path).
			Next("set LEASE_DB_PATH to an absolute path, or unset it")
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", unwritable(err, dir, "cannot make the directory of the lease database")
	}
	// SQLite follows symlinks, so the file system that matters is the target's.
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	} else if real, err := filepath.EvalSymlinks(dir); err == nil {
		path = filepath.Join(real, filepath.Base(path))
	}
	fsType, remote, err := probe(filepath.Dir(path))
	if err != nil {
		return "", unwritable(err, dir, "cannot look at the file system of the lease database")
	}
	if remote {
		return "", fault.Wrap(ErrNetworkFS, fault.InvalidArgument, "the lease database cannot lie on %s (%s)", fsType, path).
			Because("SQLite's write-ahead log needs memory shared by all its users, which a network or shared folder does not give; the database would be damaged").
			Next("set LEASE_DB_PATH (or SANDBOXFORGE_HOME) to a directory on a local disk of this machine").
			With("path", path).With("file_system", fsType)
	}
	switch st, err := os.Stat(path); {
	case err == nil && !st.Mode().IsRegular():
		return "", fault.New(fault.InvalidArgument, "the lease database %s is not a regular file", path).
			Next("set LEASE_DB_PATH to a file, existing or not, on a local disk").With("path", path)
	case err == nil:
		return path, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", unwritable(err, path, "cannot look at the lease database")
	}
	// Only a file that did not exist is opened here: closing any descriptor of
	// the database would drop the locks that this process holds on it.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	switch {
	case err == nil:
		if err := f.Close(); err != nil {
			return "", unwritable(err, path, "cannot make the lease database")
		}
	case !errors.Is(err, fs.ErrExist): // another process may have been faster
		return "", unwritable(err, path, "cannot make the lease database")
	}
	return path, nil
}

func unwritable(err error, path, what string) error {
	return fault.Wrap(fmt.Errorf("%w: %w", ErrReadOnly, err), fault.Internal, "%s", what).
		Because("%s cannot be written by this user", path).
		Next("make %s writable for the user that runs SandboxForge", path).
		Next("or set SANDBOXFORGE_HOME or LEASE_DB_PATH to a writable place on a local disk").
		With("path", path)
}
