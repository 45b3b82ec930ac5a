package demo

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"sandboxforge/examples"
	"sandboxforge/internal/fault"
)

// newWorkspace writes the sample workspace to a directory of its own: under
// dir in a directory named for the time, or, where dir is empty, in a
// temporary one. The path returned has no symlinks.
func newWorkspace(dir string, now time.Time) (string, error) {
	fail := func(err error) (string, error) {
		return "", fault.Wrap(err, fault.Internal, "cannot make the demo's copy of the sample workspace").
			Next("pass --dir with a directory that can be written")
	}
	var root string
	var err error
	if dir == "" {
		root, err = os.MkdirTemp("", "sandboxforge-demo-")
	} else {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fail(err)
		}
		root, err = os.MkdirTemp(dir, now.Format("2006-01-02-150405-"))
	}
	if err != nil {
		return fail(err)
	}
	if root, err = filepath.Abs(root); err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		return fail(err)
	}
	if err := writeTree(root, examples.Logreport()); err != nil {
		os.RemoveAll(root)
		return fail(err)
	}
	return root, nil
}

// writeTree copies a tree, and makes what starts with "#!" executable.
func writeTree(root string, from fs.FS) error {
	return fs.WalkDir(from, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		dest := filepath.Join(root, filepath.FromSlash(path))
		if d.IsDir() {
			return os.MkdirAll(dest, 0o755)
		}
		text, err := fs.ReadFile(from, path)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if bytes.HasPrefix(text, []byte("#!")) {
			mode = 0o755
		}
		return os.WriteFile(dest, text, mode)
	})
}
