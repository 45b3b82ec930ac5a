package hostpath

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
	"unicode"

	"sandboxforge/internal/fault"
)

// TempPrefix begins the name of every file that is being written; a sync skips
// such names, and one that was left by a killed process may be removed.
const TempPrefix = ".sandboxforge-tmp-"

// ErrExists: the name is taken and the call must not replace it.
var ErrExists = errors.New("the name is already taken")

// Temp is a file that is being written next to its place. It must be
// committed or aborted; Abort after Commit does nothing.
type Temp struct {
	*os.File
	dir  *Dir
	name string
	mode fs.FileMode
	done bool
}

// Create begins a new file in d. The mode is masked to permission bits.
func (d *Dir) Create(mode fs.FileMode) (*Temp, error) {
	for range 100 {
		var b [8]byte
		rand.Read(b[:])
		name := TempPrefix + hex.EncodeToString(b[:])
		f, err := d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &Temp{File: f, dir: d, name: name, mode: mode & 0o777}, nil
	}
	return nil, errors.New("no free name for a temporary file")
}

// Commit puts the file in its place under name and replaces a regular file or
// a symlink there (never what the symlink names), but no directory.
//
// check, if not nil, sees what is there now (nil if nothing is) right before
// the replacement and can veto it. Nobody can close the moment between the
// look and the rename on every system; it is as short as it can be.
func (t *Temp) Commit(name string, modTime time.Time, check func(current fs.FileInfo) error) error {
	if err := t.finish(name, modTime); err != nil {
		t.Abort()
		return err
	}
	return t.replace(name, check)
}

func (t *Temp) replace(name string, check func(current fs.FileInfo) error) error {
	current, err := t.dir.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		current, err = nil, nil
	case err == nil && current.IsDir():
		err = fault.Wrap(ErrExists, fault.PathNotAllowed, "%q is a directory and is not replaced by a file", filepath.Join(t.dir.path, name))
	case err == nil && current.Mode().Type()&^fs.ModeSymlink != 0:
		err = t.dir.refuse(ErrSpecial, name)
	}
	if err == nil && check != nil {
		err = check(current)
	}
	if err == nil {
		err = t.dir.root.Rename(t.name, name)
	}
	if err != nil {
		t.Abort()
		return err
	}
	t.done = true
	return nil
}

// CommitNew puts the file in its place if the name is free; else it fails with
// an error that wraps ErrExists and the Temp stays usable for another name.
func (t *Temp) CommitNew(name string, modTime time.Time) error {
	if err := t.finish(name, modTime); err != nil {
		t.Abort()
		return err
	}
	err := t.dir.root.Link(t.name, name)
	switch {
	case err == nil:
		t.done = true
		return t.dir.root.Remove(t.name)
	case errors.Is(err, fs.ErrExist):
		return fault.Wrap(ErrExists, fault.InvalidArgument, "%q exists", filepath.Join(t.dir.path, name))
	}
	// No hard links on this file system: an empty file reserves the name.
	f, err := t.dir.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fault.Wrap(ErrExists, fault.InvalidArgument, "%q exists", filepath.Join(t.dir.path, name))
	}
	if err == nil {
		f.Close()
		if err = t.dir.root.Rename(t.name, name); err != nil {
			t.dir.root.Remove(name)
		}
	}
	if err != nil {
		t.Abort()
		return err
	}
	t.done = true
	return nil
}

func (t *Temp) finish(name string, modTime time.Time) error {
	if err := t.dir.check(name); err != nil {
		return err
	}
	if t.File == nil {
		return nil // CommitNew again, under another name
	}
	if err := t.File.Chmod(t.mode); err != nil && runtime.GOOS != "windows" {
		return err
	}
	err := t.File.Close()
	t.File = nil
	if err != nil {
		return err
	}
	if !modTime.IsZero() {
		return t.dir.root.Chtimes(t.name, modTime, modTime)
	}
	return nil
}

// Abort removes the temporary file.
func (t *Temp) Abort() {
	if t.done {
		return
	}
	t.done = true
	if t.File != nil {
		t.File.Close()
		t.File = nil
	}
	t.dir.root.Remove(t.name)
}

// CommitLink makes a symlink under name and replaces a regular file or a
// symlink there, after check has seen it, as Temp.Commit does.
func (d *Dir) CommitLink(target, name string, check func(current fs.FileInfo) error) error {
	if err := d.check(name); err != nil {
		return err
	}
	var b [8]byte
	rand.Read(b[:])
	temp := TempPrefix + hex.EncodeToString(b[:])
	if err := d.root.Symlink(target, temp); err != nil {
		return err
	}
	t := &Temp{dir: d, name: temp}
	return t.replace(name, check)
}

// WriteFile writes a small file whole, replacing a regular file.
func (d *Dir) WriteFile(name string, data []byte, mode fs.FileMode) error {
	t, err := d.Create(mode)
	if err != nil {
		return err
	}
	defer t.Abort()
	if _, err := t.Write(data); err != nil {
		return err
	}
	return t.Commit(name, time.Time{}, nil)
}

func caseInsensitive(path string) bool {
	for p := path; ; p = filepath.Dir(p) {
		base := filepath.Base(p)
		other := strings.Map(func(r rune) rune {
			if unicode.IsUpper(r) {
				return unicode.ToLower(r)
			}
			return unicode.ToUpper(r)
		}, base)
		if other != base {
			a, err1 := os.Lstat(p)
			b, err2 := os.Lstat(filepath.Join(filepath.Dir(p), other))
			if err1 == nil {
				return err2 == nil && os.SameFile(a, b)
			}
		}
		if filepath.Dir(p) == p {
			return runtime.GOOS == "darwin" || runtime.GOOS == "windows"
		}
	}
}
