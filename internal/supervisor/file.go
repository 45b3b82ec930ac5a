package supervisor

import (
	"os"
	"path/filepath"

	"sandboxforge/internal/fault"
)

// writeAtomic makes path contain b with mode 0600: after a crash the file has
// either its old or its new content, and after success the new one is on disk.
func writeAtomic(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-"+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if _, err := f.Write(b); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	done = true
	return syncDir(filepath.Dir(path))
}

// privateDir makes dir and keeps others of the host out of it. With mend, a
// directory of ours that others can enter is closed to them; without, it is
// refused, since it may be shared on purpose.
func privateDir(dir string, mend bool) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return fault.New(fault.InvalidArgument, "%s is not a directory", dir).
			Because("something else, perhaps a symbolic link, has that name").
			Next("remove it, or name another directory")
	}
	if !ownedByUs(st) {
		return fault.New(fault.InvalidArgument, "%s belongs to another user", dir).
			Next("name a directory of your own")
	}
	if !needsPrivateMode || st.Mode().Perm()&0o077 == 0 {
		return nil
	}
	if !mend {
		return fault.New(fault.InvalidArgument, "%s is open to other users (mode %04o)", dir, st.Mode().Perm()).
			Because("the directory was not made by SandboxForge, or its mode was changed").
			Next("run `chmod 700 %s`, or name another directory", dir)
	}
	return os.Chmod(dir, 0o700)
}
