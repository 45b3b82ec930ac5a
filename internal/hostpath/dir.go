package hostpath

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"sandboxforge/internal/fault"
)

// Error kinds of what lies on the way. All are wrapped in faults
// PATH_NOT_ALLOWED.
var (
	ErrSymlink = errors.New("a symbolic link, which is not followed")
	ErrSpecial = errors.New("neither a regular file nor a directory")
	ErrSwapped = errors.New("replaced while it was being opened")
)

// Dir is an open directory that was reached without following a symlink. Its
// methods take the name of one entry; CheckName holds for all of them. It may
// be used from several goroutines.
type Dir struct {
	root *os.Root
	path string // for messages only
}

// OpenRoot opens a directory by its absolute path; symlinks in that path are
// followed, so it must be resolved or trusted.
func OpenRoot(path string) (*Dir, error) {
	r, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &Dir{root: r, path: path}, nil
}

// Close releases the directory.
func (d *Dir) Close() error { return d.root.Close() }

// Path is where the directory was when it was opened; for messages.
func (d *Dir) Path() string { return d.path }

func (d *Dir) refuse(kind error, name string) error {
	return fault.Wrap(kind, fault.PathNotAllowed, "%q is not accessible", filepath.Join(d.path, name))
}

func (d *Dir) check(name string) error {
	if err := CheckName(name); err != nil {
		return fault.Wrap(err, fault.PathNotAllowed, "%q cannot be a file name here", strings.ToValidUTF8(name, "�"))
	}
	return nil
}

// Lstat describes an entry, symlinks not followed.
func (d *Dir) Lstat(name string) (fs.FileInfo, error) {
	if err := d.check(name); err != nil {
		return nil, err
	}
	return d.root.Lstat(name)
}

// Stat describes the directory itself.
func (d *Dir) Stat() (fs.FileInfo, error) { return d.root.Lstat(".") }

// Dir opens a subdirectory.
func (d *Dir) Dir(name string) (*Dir, error) {
	before, err := d.Lstat(name)
	if err != nil {
		return nil, err
	}
	if before.Mode()&fs.ModeSymlink != 0 {
		return nil, d.refuse(ErrSymlink, name)
	}
	if !before.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(d.path, name), Err: errNotDir}
	}
	r, err := d.root.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	after, err := r.Lstat(".")
	if err == nil && !os.SameFile(before, after) {
		err = d.refuse(ErrSwapped, name)
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return &Dir{root: r, path: filepath.Join(d.path, name)}, nil
}

var errNotDir = errors.New("not a directory")

// Open opens a regular file for reading. It never blocks on what it opens and
// returns what it found by fstat.
func (d *Dir) Open(name string) (*os.File, fs.FileInfo, error) {
	before, err := d.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case before.Mode()&fs.ModeSymlink != 0:
		return nil, nil, d.refuse(ErrSymlink, name)
	case !before.Mode().IsRegular():
		return nil, nil, d.refuse(ErrSpecial, name)
	}
	f, err := d.root.OpenFile(name, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || !os.SameFile(before, info)) {
		err = d.refuse(ErrSwapped, name)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// ReadFile reads a small regular file; more than max bytes is an error.
func (d *Dir) ReadFile(name string, max int64) ([]byte, error) {
	f, info, err := d.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tooLarge := func() error {
		return fault.New(fault.InvalidArgument, "%q is larger than %d bytes", filepath.Join(d.path, name), max)
	}
	if info.Size() > max {
		return nil, tooLarge()
	}
	data, err := io.ReadAll(io.LimitReader(f, max+1))
	if err == nil && int64(len(data)) > max {
		err = tooLarge()
	}
	return data, err
}

// Names lists the entries' names, in no order.
func (d *Dir) Names() ([]string, error) {
	f, err := d.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// Readlink returns a symlink's target.
func (d *Dir) Readlink(name string) (string, error) {
	if err := d.check(name); err != nil {
		return "", err
	}
	return d.root.Readlink(name)
}

// Walk opens the directory at a relative path with forward slashes; "." is a
// second handle on d.
func (d *Dir) Walk(rel string) (*Dir, error) { return d.walk(rel, false) }

// MakeAll is Walk that makes missing directories, mode 0777 less the umask.
func (d *Dir) MakeAll(rel string) (*Dir, error) { return d.walk(rel, true) }

func (d *Dir) walk(rel string, make bool) (*Dir, error) {
	if err := CheckRel(rel); err != nil {
		return nil, fault.Wrap(err, fault.PathNotAllowed, "the path is not usable")
	}
	r, err := d.root.OpenRoot(".")
	if err != nil {
		return nil, err
	}
	cur := &Dir{root: r, path: d.path}
	if rel == "." {
		return cur, nil
	}
	for c := range strings.SplitSeq(rel, "/") {
		if make {
			if err := cur.root.Mkdir(c, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
				cur.Close()
				return nil, err
			}
		}
		next, err := cur.Dir(c)
		cur.Close()
		if err != nil {
			return nil, err
		}
		cur = next
	}
	return cur, nil
}

// Parent splits a relative path into its open parent directory and its last
// name. It fails for ".".
func (d *Dir) Parent(rel string) (*Dir, string, error) {
	if rel == "." {
		return nil, "", fault.New(fault.PathNotAllowed, "the root itself has no parent here")
	}
	dir, name := ".", rel
	if i := strings.LastIndexByte(rel, '/'); i >= 0 {
		dir, name = rel[:i], rel[i+1:]
	}
	if err := d.check(name); err != nil {
		return nil, "", err
	}
	p, err := d.Walk(dir)
	return p, name, err
}

// Mkdir makes a directory; the mode is masked to permission bits and always
// lets the owner in.
func (d *Dir) Mkdir(name string, mode fs.FileMode) error {
	if err := d.check(name); err != nil {
		return err
	}
	return d.root.Mkdir(name, mode&0o777|0o700)
}

// Remove removes a file, a symlink or an empty directory. A missing entry is
// success.
func (d *Dir) Remove(name string) error {
	if err := d.check(name); err != nil {
		return err
	}
	if err := d.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Symlink makes a symlink; it fails if the name exists.
func (d *Dir) Symlink(target, name string) error {
	if err := d.check(name); err != nil {
		return err
	}
	return d.root.Symlink(target, name)
}

// Chmod sets permission bits of a regular file or directory.
func (d *Dir) Chmod(name string, mode fs.FileMode) error {
	info, err := d.Lstat(name)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return d.refuse(ErrSymlink, name)
	}
	return d.root.Chmod(name, mode&0o777)
}

// CaseInsensitive reports whether the directory's file system takes names that
// differ only in case for the same. It writes nothing: it looks the directory
// up under its own name in other case, and believes the platform's habit where
// the name has no letters.
func (d *Dir) CaseInsensitive() bool {
	return caseInsensitive(d.path)
}

// String shows the path.
func (d *Dir) String() string { return fmt.Sprintf("dir %s", d.path) }
