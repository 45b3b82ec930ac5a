package workspace

import (
	"slices"
)

// Conflict is a path that both sides changed, or that one side has and the
// sync may not replace.
type Conflict struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	Host   string `json:"host"`  // unchanged, changed, created, deleted, absent
	Guest  string `json:"guest"` // the same
	// Resolution is what on_conflict decided: "" (left alone), keep_host,
	// keep_guest.
	Resolution string `json:"resolution,omitempty"`
}

// Problem is a path that was left out, and why.
type Problem struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// plan is what a sync in one direction will do. Paths are in comparePaths
// order, parents first, but remove is deepest first. The receiving side is
// called the destination, the other the source.
type plan struct {
	remove []string // at the destination
	write  []string // at the destination, from the source; directories too
	// replaced is the set of written paths that replace something.
	replaced  map[string]bool
	adopt     []string // the same on both sides: to be recorded
	forget    []string // gone on both sides, or no business of ours any more
	conflicts []Conflict
	kept      []string // changed at the destination only: left alone
	unchanged int      // files that need nothing
}

func change(n *Node, a *Ancestor) string {
	switch {
	case n == nil && a == nil:
		return "absent"
	case n == nil:
		return "deleted"
	case a == nil:
		return "created"
	case unchanged(n, a):
		return "unchanged"
	}
	return "changed"
}

// planner holds the inputs of a plan. src and dst are trees; up says which of
// them is the host.
type planner struct {
	anc      map[string]*Ancestor
	src, dst Tree
	up       bool
	prefer   OnConflict // Down only
	paths    []string   // union, sorted
	dstPaths []string   // sorted
	out      plan
	blocked  prefixes // subtrees that no action may enter
}

// makePlan is the heart of the sync: a pure function of the three trees.
//
// Invariants:
//   - A path of the destination is replaced or removed only if it is what the
//     ancestor says, or prefer says so; removed, only if a sync put it there.
//   - What cannot be read on either side (Other) is neither replaced nor
//     removed, nor is anything below it.
//   - A directory is replaced by a file only if all below it may be removed.
func makePlan(anc map[string]*Ancestor, src, dst Tree, up bool, prefer OnConflict) *plan {
	p := &planner{anc: anc, src: src, dst: dst, up: up, prefer: prefer, paths: unionPaths(anc, src, dst)}
	p.out.replaced = map[string]bool{}
	for q := range dst {
		p.dstPaths = append(p.dstPaths, q)
	}
	slices.SortFunc(p.dstPaths, comparePaths)
	for _, path := range p.paths {
		if !p.blocked.has(path) {
			p.visit(path, anc[path], src[path], dst[path])
		}
	}
	slices.SortFunc(p.out.remove, func(a, b string) int { return comparePaths(b, a) })
	return &p.out
}

func (p *planner) visit(path string, a *Ancestor, s, d *Node) {
	switch {
	case s != nil && s.Kind == Other:
		p.blocked.add(path) // reported by the scan
	case d != nil && d.Kind == Other:
		if s != nil {
			p.conflict(path, "cannot be read at the destination: "+d.Err, false)
		}
		p.blocked.add(path)
	case s == nil && a == nil:
		// Only the destination has it: not ours.
	case s == nil:
		p.gone(path, a, d)
	case same(s, d):
		if s.Kind == File {
			p.out.unchanged++
		}
		p.out.adopt = append(p.out.adopt, path)
	case d == nil:
		p.absent(path, a, s)
	default:
		p.differs(path, a, s, d)
	}
}

// gone: the source no longer has what the ancestor knows.
func (p *planner) gone(path string, a *Ancestor, d *Node) {
	switch {
	case d == nil, d.Kind != Dir && !a.Put:
		p.out.forget = append(p.out.forget, path)
	case d.Kind == Dir && a.Kind == Dir:
		// Removed if it becomes empty; what the destination has in it stays.
		if a.Put {
			p.out.remove = append(p.out.remove, path)
		} else {
			p.out.forget = append(p.out.forget, path)
		}
	case unchanged(d, a):
		p.out.remove = append(p.out.remove, path)
	case d.Kind == Dir: // the destination made a directory of it: not ours
		p.out.forget = append(p.out.forget, path)
	case p.conflict(path, "removed here, changed there", true):
		p.out.remove = append(p.out.remove, path)
	}
}

// absent: the source has it, the destination does not.
func (p *planner) absent(path string, a *Ancestor, s *Node) {
	if p.up || a == nil || a.intent() {
		// What only the guest has deleted comes back: nothing is lost by that.
		p.out.write = append(p.out.write, path)
		return
	}
	// The host deleted it after the last sync.
	switch {
	case unchanged(s, a):
		p.out.kept = append(p.out.kept, path)
		if s.Kind == Dir {
			return // something new below it brings it back
		}
	case s.Kind == Dir:
		p.out.write = append(p.out.write, path)
	case p.conflict(path, "deleted on the host, changed in the guest", true):
		p.out.write = append(p.out.write, path)
	}
}

// differs: both sides have it, with other content.
func (p *planner) differs(path string, a *Ancestor, s, d *Node) {
	switch {
	case a == nil:
		if !p.conflict(path, "exists on both sides with different content, and no sync put it there", true) {
			p.leave(path, s, d)
			return
		}
	case unchanged(d, a):
	case unchanged(s, a):
		p.out.kept = append(p.out.kept, path)
		p.leave(path, s, d)
		return
	default:
		if !p.conflict(path, "changed on both sides", true) {
			p.leave(path, s, d)
			return
		}
	}
	if d.Kind == Dir {
		// Everything below has to go first.
		below := descendants(p.dstPaths, path)
		for _, q := range below {
			if !p.removable(q) {
				p.conflict(path, "is a directory at the destination with content that must stay: "+q, false)
				p.blocked.add(path)
				return
			}
		}
		p.out.remove = append(p.out.remove, below...)
		p.out.remove = append(p.out.remove, path)
		for _, q := range descendants(p.paths, path) {
			if p.anc[q] != nil {
				p.out.forget = append(p.out.forget, q)
			}
		}
		p.blocked.add(path)
	} else if s.Kind == Dir {
		p.out.remove = append(p.out.remove, path)
	}
	p.out.write = append(p.out.write, path)
	p.out.replaced[path] = true
}

// leave keeps all actions out of a subtree where a directory meets something
// else.
func (p *planner) leave(path string, s, d *Node) {
	if s.Kind == Dir || d.Kind == Dir {
		p.blocked.add(path)
	}
}

// removable reports whether a path of the destination may be removed.
func (p *planner) removable(path string) bool {
	a, d := p.anc[path], p.dst[path]
	return a != nil && a.Put && unchanged(d, a)
}

// conflict records a conflict and reports whether the policy lets the source
// win.
func (p *planner) conflict(path, reason string, decidable bool) bool {
	host, guest := p.src[path], p.dst[path]
	if !p.up {
		host, guest = guest, host
	}
	c := Conflict{Path: path, Reason: reason, Host: change(host, p.anc[path]), Guest: change(guest, p.anc[path])}
	if decidable && !p.up && (p.prefer == KeepHost || p.prefer == KeepGuest) {
		c.Resolution = string(p.prefer)
	}
	p.out.conflicts = append(p.out.conflicts, c)
	return c.Resolution == string(KeepGuest)
}

// OnConflict says what Down does where both sides changed.
type OnConflict string

// The policies.
const (
	Fail      OnConflict = "fail"
	KeepHost  OnConflict = "keep_host"
	KeepGuest OnConflict = "keep_guest"
)

// needHash lists the files of both sides whose content the plan will ask for:
// those of a size that some counterpart has too.
func needHash(anc map[string]*Ancestor, host, guest Tree) (hostPaths, guestPaths []string) {
	consider := func(t, other Tree) []string {
		var list []string
		for p, n := range t {
			if n.Kind != File || n.Hashed {
				continue
			}
			if a := anc[p]; a != nil && a.Kind == File && a.Size == n.size() {
				list = append(list, p)
			} else if o := other[p]; o != nil && o.Kind == File && o.size() == n.size() {
				list = append(list, p)
			}
		}
		slices.SortFunc(list, comparePaths)
		return list
	}
	return consider(host, guest), consider(guest, host)
}
