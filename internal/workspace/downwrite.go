package workspace

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"sandboxforge/internal/hostpath"
)

// file notes an error that concerns one path.
func (d *downloader) file(p string, err error) {
	if err != nil {
		d.res.Failed = append(d.res.Failed, Problem{p, plainError(err)})
	}
}

func plainError(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return describeError(pe.Err)
	}
	return describeError(err)
}

// asScanned is the last look before a replacement: the host's file must still
// be the one that the plan was made for.
func (d *downloader) asScanned(p string) func(fs.FileInfo) error {
	return func(current fs.FileInfo) error {
		n := d.s.host.tree[p]
		if d.plan.replaced[p] && n != nil && (n.Kind == Dir || d.s.guest.tree[p].Kind == Dir) {
			n = nil // removed just before
		}
		if (current == nil) != (n == nil) {
			return errMoved
		}
		if current == nil {
			return nil
		}
		return stillIs(current, n)
	}
}

var errMoved = errors.New("changed on the host while the sync ran")

func stillIs(info fs.FileInfo, n *Node) error {
	ok := false
	switch n.Kind {
	case File:
		s := stampOf(info)
		ok = info.Mode().IsRegular() && s.Size == n.Stamp.Size && s.MTime == n.Stamp.MTime && s.Inode == n.Stamp.Inode &&
			(n.Stamp.CTime == 0 || s.CTime == n.Stamp.CTime)
	case Symlink:
		ok = info.Mode()&fs.ModeSymlink != 0
	case Dir:
		ok = info.IsDir()
	}
	if !ok {
		return errMoved
	}
	return nil
}

func (d *downloader) moved(p string) {
	d.res.Conflicts = append(d.res.Conflicts, Conflict{Path: p, Reason: errMoved.Error(), Host: "changed", Guest: change(d.s.guest.tree[p], d.s.anc[p])})
}

func (d *downloader) wrote(p string) {
	if d.s.host.tree[p] != nil {
		d.res.Updated = append(d.res.Updated, p)
	} else if d.listed(p) {
		d.res.Created = append(d.res.Created, p)
	}
}

func (d *downloader) takeFile(cache *dirCache, p string, n *Node, r io.Reader) error {
	dir, name, err := cache.parent(p)
	if err != nil {
		return &fileError{plainError(err)}
	}
	t, sum, err := writeTemp(dir, n, r, guestMode(n))
	if err != nil {
		return err
	}
	if err := t.Commit(name, unixNano(n.Stamp.MTime), d.asScanned(p)); err != nil {
		if errors.Is(err, errMoved) {
			d.moved(p)
			return nil
		}
		return hostWriteError(err)
	}
	d.wrote(p)
	h := &Node{Kind: File, Exec: n.Exec, Hash: sum, Hashed: true, Stamp: Stamp{Size: n.size()}}
	if info, err := dir.Lstat(name); err == nil {
		h.Stamp = settled(stampOf(info), time.Now())
	}
	d.s.record(p, h, n, true)
	return nil
}

func (d *downloader) makeDir(p string) error {
	parent, name, err := d.parent(p)
	if err != nil {
		return err
	}
	defer parent.Close()
	n := d.s.guest.tree[p]
	err = parent.Mkdir(name, guestMode(n))
	if errors.Is(err, fs.ErrExist) {
		if info, lerr := parent.Lstat(name); lerr == nil && info.IsDir() {
			err = nil
		}
	} else if err == nil {
		d.wrote(p)
	}
	if err == nil {
		d.s.record(p, n, nil, true)
	}
	return err
}

// parent opens the directory above p and makes it if the host lost it.
func (d *downloader) parent(p string) (*hostpath.Dir, string, error) {
	dir, name := path.Split(p)
	if dir == "" {
		dir = "."
	}
	parent, err := d.root.MakeAll(strings.TrimSuffix(dir, "/"))
	return parent, name, err
}

// makeLink makes a symlink by rename, so that what was there is replaced at
// once.
func (d *downloader) makeLink(cache *dirCache, p string) error {
	dir, name, err := cache.parent(p)
	if err != nil {
		return err
	}
	n := d.s.guest.tree[p]
	err = dir.CommitLink(n.Target, name, d.asScanned(p))
	if errors.Is(err, errMoved) {
		d.moved(p)
		return nil
	}
	if err == nil {
		d.wrote(p)
		d.s.record(p, n, nil, true)
	}
	return err
}

// removeOne removes a path of the host if it still is what was scanned; a
// directory only if it is empty.
func (d *downloader) removeOne(p string) {
	parent, name, err := d.root.Parent(p)
	if errors.Is(err, fs.ErrNotExist) {
		delete(d.s.anc, p)
		return
	}
	if err != nil {
		d.file(p, err)
		return
	}
	defer parent.Close()
	n := d.s.host.tree[p]
	info, err := parent.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		d.file(p, err)
		return
	case stillIs(info, n) != nil:
		d.moved(p)
		return
	default:
		if err := parent.Remove(name); err != nil {
			if n.Kind != Dir {
				d.file(p, err)
				return
			}
			// Not empty: the host keeps files there that are its own.
		} else if n.Kind != Dir && !d.plan.replaced[p] {
			d.res.Deleted = append(d.res.Deleted, p)
		}
	}
	if !d.plan.replaced[p] {
		delete(d.s.anc, p)
	}
}
