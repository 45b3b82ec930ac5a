package workspace

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"strings"
)

// Kind is what a path is, on either side.
type Kind uint8

// The kinds. Other is neither of the rest, or cannot be read; it is never
// transferred, replaced or deleted.
const (
	Other Kind = iota
	File
	Dir
	Symlink
)

// Stamp is what tells without reading that a file was not touched. The zero
// Stamp is equal to none.
type Stamp struct {
	Size  int64
	MTime int64 // unix ns
	CTime int64 // unix ns; 0 where the platform has none
	Inode uint64
}

func (s Stamp) trusts(other Stamp) bool { return s == other && s.CTime != 0 }

// Node is one path of a scanned side.
type Node struct {
	Kind   Kind
	Exec   bool
	Mode   uint32 // permission bits
	Stamp  Stamp
	Hashed bool
	Hash   [sha256.Size]byte
	Target string // of a symlink
	Err    string // why Kind is Other
	// Content, if not nil, is what is synced of a file in place of all that is
	// in it (see Request.Strip); Hash is of it, Stamp is the file's own.
	Content []byte
}

// size is the size of what is synced of a file.
func (n *Node) size() int64 {
	if n.Content != nil {
		return int64(len(n.Content))
	}
	return n.Stamp.Size
}

// Tree is one side: relative paths with forward slashes. The root itself is
// not in it.
type Tree map[string]*Node

// Ancestor is what both sides agreed on for one path.
type Ancestor struct {
	Kind   Kind
	Exec   bool
	Size   int64
	Hash   [sha256.Size]byte
	Target string
	// Put: a sync transferred it, so a sync may delete it.
	Put bool
	// Pending: a transfer was begun and its end is not known. Without a known
	// hash it equals nothing.
	Pending bool
	Host    Stamp
	Guest   Stamp
}

// intent reports whether nothing is known but that a transfer was begun.
func (a *Ancestor) intent() bool { return a.Pending && a.Hash == [sha256.Size]byte{} }

// same reports whether two nodes have the same content. Directories are all
// the same. Files of one size must have been hashed.
func same(a, b *Node) bool {
	if a == nil || b == nil || a.Kind != b.Kind {
		return false
	}
	switch a.Kind {
	case Dir:
		return true
	case Symlink:
		return a.Target == b.Target
	case File:
		return a.Exec == b.Exec && a.size() == b.size() && a.Hashed && b.Hashed && a.Hash == b.Hash
	}
	return false
}

// unchanged reports whether a node still is what was agreed on.
func unchanged(n *Node, a *Ancestor) bool {
	if n == nil || a == nil || n.Kind != a.Kind {
		return false
	}
	switch n.Kind {
	case Dir:
		return true
	case Symlink:
		return n.Target == a.Target
	case File:
		if a.intent() {
			return false
		}
		return n.Exec == a.Exec && n.size() == a.Size && n.Hashed && n.Hash == a.Hash
	}
	return false
}

// comparePaths orders parents before children and keeps subtrees together.
func comparePaths(a, b string) int {
	for i := range min(len(a), len(b)) {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if x == '/' {
			return -1
		}
		if y == '/' {
			return 1
		}
		return cmp.Compare(x, y)
	}
	return cmp.Compare(len(a), len(b))
}

// unionPaths is the sorted union of the keys.
func unionPaths(anc map[string]*Ancestor, trees ...Tree) []string {
	n := len(anc)
	for _, t := range trees {
		n = max(n, len(t))
	}
	list := make([]string, 0, n)
	for p := range anc {
		list = append(list, p)
	}
	for i, t := range trees {
	next:
		for p := range t {
			if _, ok := anc[p]; ok {
				continue
			}
			for _, earlier := range trees[:i] {
				if _, ok := earlier[p]; ok {
					continue next
				}
			}
			list = append(list, p)
		}
	}
	slices.SortFunc(list, comparePaths)
	return list
}

// prefixes is a set of subtrees, for paths visited in comparePaths order.
type prefixes struct{ current string }

func (b *prefixes) add(p string) { b.current = p }

// has reports whether p lies below the subtree that was added last; since
// paths come in order, no earlier one matters.
func (b *prefixes) has(p string) bool {
	return b.current != "" && strings.HasPrefix(p, b.current) && len(p) > len(b.current) && p[len(b.current)] == '/'
}

// descendants are the paths of a sorted list that lie below dir.
func descendants(sorted []string, dir string) []string {
	lo, _ := slices.BinarySearchFunc(sorted, dir, comparePaths)
	for lo < len(sorted) && sorted[lo] == dir {
		lo++
	}
	hi := lo
	for hi < len(sorted) && strings.HasPrefix(sorted[hi], dir+"/") {
		hi++
	}
	return sorted[lo:hi]
}
