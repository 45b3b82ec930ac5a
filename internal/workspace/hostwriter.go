package workspace

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"sandboxforge/internal/hostpath"
)

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
		need = plus(need, t[p].Stamp.Size)
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
