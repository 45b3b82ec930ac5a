package workspace

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"sandboxforge/internal/hostpath"
)

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
		for q := p; q != "."; q = path.Dir(q) {
			if dropped[q] && d.plan.replaced[q] {
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
			if other, ok := spelled[hostpath.Fold(q)]; ok && other != q {
				clash[p] = other
			}
		}
		if clash[p] != "" {
			continue // its spelling takes no name away
		}
		for q := p; q != "."; q = path.Dir(q) {
			spelled[hostpath.Fold(q)] = q
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
