package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/hostpath"
)

// DownOptions are what only a sync from the guest has.
type DownOptions struct {
	DryRun     bool
	OnConflict OnConflict // "" is Fail
}

// DownResult says what a sync from the guest did, or would do.
type DownResult struct {
	Created   []string   `json:"created"`
	Updated   []string   `json:"updated"`
	Deleted   []string   `json:"deleted"`
	Conflicts []Conflict `json:"conflicts"`
	// Refused are places and names that the host does not take from a guest.
	Refused []Problem `json:"refused"`
	// Failed are files that could not be read or written this time.
	Failed []Problem `json:"failed"`
	Status string    `json:"status"` // ok, conflicts, partial, dry_run
}

// Down brings what is new or changed in the guest to the host. Single files
// end in Conflicts, Refused or Failed and do not stop the others. With DryRun
// nothing is written, neither files nor the manifest. After a cancel or a lost
// connection each file on the host is the old or the new one, and another call
// goes on from there.
func Down(ctx context.Context, r Request, o DownOptions) (*DownResult, error) {
	switch o.OnConflict {
	case "":
		o.OnConflict = Fail
	case Fail, KeepHost, KeepGuest:
	default:
		return nil, fault.New(fault.InvalidArgument, "on_conflict %q is not fail, keep_host or keep_guest", string(o.OnConflict))
	}
	s, err := openSession(ctx, &r, false)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if s.guest.missing {
		return nil, fault.New(fault.InvalidArgument, "there is no directory %q in the guest", s.remote).
			Because("the workspace was not synced there, or was removed").
			Next("call sync_workspace_to_instance first, or give the remote_path of an existing directory")
	}
	d := &downloader{s: s, o: o, res: &DownResult{Created: []string{}, Updated: []string{}, Deleted: []string{},
		Conflicts: []Conflict{}, Refused: []Problem{}, Failed: []Problem{}}}
	d.res.Refused = append(d.res.Refused, s.guest.bad...)
	for p, n := range s.guest.tree {
		if n.Kind == Other {
			d.res.Failed = append(d.res.Failed, Problem{p, n.Err})
		}
	}
	d.res.Failed = append(d.res.Failed, s.host.skipped...)
	d.plan = makePlan(s.anc, s.guest.tree, s.host.tree, false, o.OnConflict)
	d.protectFromEmpty()
	d.res.Conflicts = append(d.res.Conflicts, d.plan.conflicts...)
	d.judge()
	if o.DryRun {
		d.preview()
		d.finish("dry_run")
		return d.res, nil
	}
	s.adopt(d.plan.adopt)
	s.forget(d.plan.forget)
	err = d.run(ctx)
	if serr := s.save(); err == nil {
		err = serr
	}
	if err != nil {
		return nil, err
	}
	d.finish("ok")
	return d.res, nil
}

type downloader struct {
	s    *session
	o    DownOptions
	plan *plan
	res  *DownResult
	root *hostpath.Dir
}

func (d *downloader) finish(status string) {
	for _, list := range []*[]string{&d.res.Created, &d.res.Updated, &d.res.Deleted} {
		slices.SortFunc(*list, comparePaths)
	}
	for _, list := range []*[]Problem{&d.res.Refused, &d.res.Failed} {
		slices.SortFunc(*list, func(a, b Problem) int { return comparePaths(a.Path, b.Path) })
	}
	d.res.Status = status
	if status != "ok" {
		return
	}
	open := slices.ContainsFunc(d.res.Conflicts, func(c Conflict) bool { return c.Resolution == "" })
	switch {
	case open:
		d.res.Status = "conflicts"
	case len(d.res.Failed) > 0:
		d.res.Status = "partial"
	}
}

// protectFromEmpty: a guest's directory that lost everything is more likely an
// accident than the wish to empty the host's.
func (d *downloader) protectFromEmpty() {
	if len(d.s.guest.tree) > 0 || len(d.plan.remove) == 0 || d.o.OnConflict == KeepGuest {
		return
	}
	for _, p := range d.plan.remove {
		if a := d.s.anc[p]; a != nil && a.Kind != Dir {
			d.plan.conflicts = append(d.plan.conflicts, Conflict{Path: p, Host: "unchanged", Guest: "deleted",
				Reason: "the guest's directory is empty; nothing is deleted on the host unless on_conflict is keep_guest"})
		}
	}
	d.plan.remove = nil
}

func (d *downloader) trust(rel string) (string, bool) {
	return d.s.Trust.Check(d.s.Local.Join(rel).Rel)
}

// judge takes out of the plan what the host does not take from a guest.
func (d *downloader) judge() {
	bare := d.bareRepositories()
	clash := d.caseClashes()
	why := func(p string) string {
		if err := hostpath.CheckRel(p); err != nil {
			return err.Error()
		}
		if why, refused := d.trust(p); refused {
			return why
		}
		for dir := path.Dir(p); ; dir = path.Dir(dir) {
			if bare[dir] {
				return hostpath.BareRepositoryReason
			}
			if dir == "." {
				break
			}
		}
		if strings.HasPrefix(path.Base(p), hostpath.TempPrefix) {
			return "the name is reserved for files that are being written"
		}
		if n := d.s.guest.tree[p]; n != nil && n.Kind == Symlink {
			return safeLink(p, n.Target, d.trust)
		}
		return ""
	}
	dropped := map[string]bool{}
	d.plan.write = d.filter(d.plan.write, why, clash, dropped)
	// A replacement that was dropped keeps what it would have replaced.
	d.plan.remove = slices.DeleteFunc(d.plan.remove, func(p string) bool {
		for q := range dropped {
			if d.plan.replaced[q] && (p == q || strings.HasPrefix(p, q+"/")) {
				return true
			}
		}
		return false
	})
	slices.Reverse(d.plan.remove) // parents first, for the reports
	d.plan.remove = d.filter(d.plan.remove, func(p string) string {
		if n := d.s.guest.tree[p]; n != nil {
			return "" // judged as a write
		}
		return why(p)
	}, nil, map[string]bool{})
	slices.Reverse(d.plan.remove)
}

// filter keeps the paths that may be acted on. A refused directory stands for
// what lies below it.
func (d *downloader) filter(paths []string, why func(string) string, clash map[string]string, dropped map[string]bool) []string {
	var keep []string
	reported := ""
	for _, p := range paths {
		if other, ok := clash[p]; ok {
			d.res.Conflicts = append(d.res.Conflicts, Conflict{Path: p, Host: "unchanged", Guest: "created",
				Reason: fmt.Sprintf("the host's file system takes the name for the same as %q", other)})
			dropped[p] = true
			continue
		}
		reason := why(p)
		if reason == "" {
			keep = append(keep, p)
			continue
		}
		dropped[p] = true
		if reported == "" || !strings.HasPrefix(p, reported+"/") {
			d.res.Refused = append(d.res.Refused, Problem{clip(p), reason})
			reported = p
		}
	}
	return keep
}

// bareRepositories finds the directories that would look like a repository to
// git, with what is on the host and what would come.
func (d *downloader) bareRepositories() map[string]bool {
	names := map[string][]string{}
	touched := map[string]bool{}
	add := func(p string) { names[path.Dir(p)] = append(names[path.Dir(p)], path.Base(p)) }
	for p := range d.s.host.tree {
		add(p)
	}
	for _, p := range d.plan.write {
		add(p)
		for dir := path.Dir(p); !touched[dir]; dir = path.Dir(dir) {
			touched[dir] = true
		}
	}
	for _, p := range d.plan.remove {
		touched[path.Dir(p)] = true
	}
	bare := map[string]bool{}
	for dir := range touched {
		if hostpath.LooksBare(names[dir]) && !d.s.Trust.AllowsBare(d.s.Local.Join(dir).Rel) {
			bare[dir] = true
		}
	}
	return bare
}

// caseClashes finds writes whose name the host takes for another one's.
func (d *downloader) caseClashes() map[string]string {
	if d.s.root == nil || !d.s.root.CaseInsensitive() {
		return nil
	}
	return clashes(d.plan.write, d.s.host.tree)
}

func clashes(write []string, host Tree) map[string]string {
	spelled := make(map[string]string, len(host)+len(write))
	for p := range host {
		spelled[hostpath.Fold(p)] = p
	}
	clash := map[string]string{}
	for _, p := range write {
		for q := p; q != "."; q = path.Dir(q) {
			key := hostpath.Fold(q)
			if other, ok := spelled[key]; !ok {
				spelled[key] = q
			} else if other != q {
				clash[p] = other
				break
			}
		}
	}
	return clash
}

func (d *downloader) preview() {
	for _, p := range d.plan.write {
		if d.s.host.tree[p] != nil {
			d.res.Updated = append(d.res.Updated, p)
		} else if d.listed(p) {
			d.res.Created = append(d.res.Created, p)
		}
	}
	for _, p := range d.plan.remove {
		if n := d.s.host.tree[p]; n != nil && n.Kind != Dir && !d.plan.replaced[p] {
			d.res.Deleted = append(d.res.Deleted, p)
		}
	}
}

// listed: directories are only named where they stay empty.
func (d *downloader) listed(p string) bool {
	n := d.s.guest.tree[p]
	return n.Kind != Dir || len(descendants(d.plan.write, p)) == 0
}

func (d *downloader) run(ctx context.Context) error {
	if len(d.plan.write)+len(d.plan.remove) == 0 {
		return nil
	}
	var need int64
	var files, links, dirs []string
	for _, p := range d.plan.write {
		switch n := d.s.guest.tree[p]; n.Kind {
		case File:
			files = append(files, p)
			need += n.Stamp.Size
		case Symlink:
			links = append(links, p)
		case Dir:
			dirs = append(dirs, p)
		}
	}
	if err := checkFree(d.s.Local.Root, need); err != nil {
		return err
	}
	root, err := d.s.Local.Open()
	if err != nil {
		return localFault(err, d.s.Local.Path())
	}
	defer root.Close()
	if d.root, err = root.MakeAll(d.s.Local.Rel); err != nil {
		return localFault(err, d.s.Local.Path())
	}
	defer d.root.Close()

	// What is replaced by another kind goes first, other removals last.
	var late []string
	for _, p := range d.plan.remove {
		if d.underReplaced(p) {
			d.removeOne(p)
		} else {
			late = append(late, p)
		}
	}
	for _, p := range dirs {
		d.file(p, d.makeDir(p))
	}
	cache := &dirCache{root: d.root, make: true}
	defer cache.close()
	var got int64
	failed, err := receive(ctx, d.s.Guest, d.s.remote, files, func(p string) *Node { return d.s.guest.tree[p] },
		func(p string, n *Node, r io.Reader) error {
			err := d.takeFile(cache, p, n, r)
			got += n.Stamp.Size
			d.s.Progress.report("receive", got, need)
			return err
		})
	d.res.Failed = append(d.res.Failed, failed...)
	if err != nil {
		return err
	}
	for _, p := range links {
		d.file(p, d.makeLink(cache, p))
	}
	for _, p := range late {
		if err := ctx.Err(); err != nil {
			return fault.From(err)
		}
		d.removeOne(p)
	}
	return nil
}

func (d *downloader) underReplaced(p string) bool {
	for q := p; q != "."; q = path.Dir(q) {
		if d.plan.replaced[q] {
			return true
		}
	}
	return false
}

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
	h := &Node{Kind: File, Exec: n.Exec, Hash: sum, Hashed: true, Stamp: Stamp{Size: n.Stamp.Size}}
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
