package workspace

import (
	"bytes"
	"context"
	"io"
	"path"
	"slices"

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

func (d *downloader) run(ctx context.Context) error {
	if len(d.plan.write)+len(d.plan.remove) == 0 {
		return nil
	}
	var need int64
	var files, held, links, dirs []string
	for _, p := range d.plan.write {
		switch n := d.s.guest.tree[p]; n.Kind {
		case File:
			if n.Content != nil {
				held = append(held, p)
				continue
			}
			files = append(files, p)
			need = plus(need, n.Stamp.Size)
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

	if err := d.intend(); err != nil {
		return err
	}
	defer d.settle()

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
	for _, p := range held {
		n := d.s.guest.tree[p]
		d.file(p, d.takeFile(cache, p, n, bytes.NewReader(n.Content)))
	}
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

// intend notes what is about to be made, so that it is known to be ours even
// if this process is killed before it can say so.
func (d *downloader) intend() error {
	n := 0
	for _, p := range d.plan.write {
		if d.s.anc[p] == nil {
			g := d.s.guest.tree[p]
			d.s.anc[p] = &Ancestor{Kind: g.Kind, Size: g.size(), Target: g.Target, Put: true, Pending: true}
			n++
		}
	}
	if n == 0 {
		return nil
	}
	return d.s.save()
}

// settle takes back what was intended and not made.
func (d *downloader) settle() {
	for _, p := range d.plan.write {
		if a := d.s.anc[p]; a != nil && a.intent() {
			delete(d.s.anc, p)
		}
	}
}
