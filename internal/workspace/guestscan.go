package workspace

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"sandboxforge/internal/fault"
)

// maxEntries bounds a guest's tree.
const maxEntries = 1_000_000

// guestScan is the guest's side.
type guestScan struct {
	tree    Tree
	missing bool      // there is no such directory
	bad     []Problem // entries that cannot be used
}

// scanGuest walks the guest's directory without hashing. What a stamp of the
// ancestor vouches for gets the ancestor's hash.
func scanGuest(ctx context.Context, g Guest, root string, exclude []string, full bool, anc map[string]*Ancestor) (*guestScan, error) {
	s := &guestScan{tree: Tree{}}
	for e, err := range g.Tree(ctx, TreeRequest{Root: root, Exclude: exclude, MaxEntries: maxEntries}) {
		if errors.Is(err, ErrNotFound) && len(s.tree) == 0 {
			s.missing = true
			return s, nil
		}
		if err != nil {
			return nil, guestFault(err, "the guest's directory %q cannot be read", root)
		}
		if len(s.tree) > maxEntries {
			return nil, fault.Wrap(ErrTruncated, fault.InvalidArgument, "the guest's directory %q has more than %d entries", root, maxEntries)
		}
		if e.Path == "." || e.Path == "" {
			if e.Error != "" {
				return nil, fault.New(fault.InvalidArgument, "the guest's directory %q cannot be read: %s", root, clip(e.Error))
			}
			if e.Type != TypeDir {
				return nil, fault.New(fault.InvalidArgument, "%q is not a directory in the guest", root)
			}
			continue
		}
		if why := badGuestPath(e.Path); why != "" {
			s.bad = append(s.bad, Problem{clip(e.Path), why})
			continue
		}
		if _, twice := s.tree[e.Path]; twice {
			return nil, fault.New(fault.Internal, "the guest lists %q twice", clip(e.Path))
		}
		s.tree[e.Path] = guestNode(e, full, anc[e.Path])
	}
	// A child of what is no directory would be a lie; it also must not be the
	// reason to replace something on the host.
	for p := range s.tree {
		if d := path.Dir(p); d != "." {
			if n := s.tree[d]; n == nil || n.Kind != Dir && n.Kind != Other {
				return nil, fault.New(fault.Internal, "the guest lists %q without its directory", clip(p))
			}
		}
	}
	return s, nil
}

// badGuestPath reports why a relative path of the guest cannot be one. Names
// that only this host cannot store are judged later, by hostpath.
func badGuestPath(p string) string {
	switch {
	case len(p) > maxPath:
		return "the path is too long"
	case strings.ContainsRune(p, 0):
		return "the path contains a NUL byte"
	case path.IsAbs(p) || path.Clean(p) != p || p == ".." || strings.HasPrefix(p, "../"):
		return "not a clean relative path"
	}
	return ""
}

func guestNode(e Entry, full bool, a *Ancestor) *Node {
	n := &Node{Mode: e.Mode & 0o777}
	switch {
	case e.Error != "":
		n.Kind, n.Err = Other, clip(e.Error)
	case e.Type == TypeDir:
		n.Kind = Dir
	case e.Type == TypeSymlink:
		n.Kind, n.Target = Symlink, e.LinkTarget
	case e.Type == TypeRegular && e.Size >= 0:
		n.Kind, n.Exec = File, e.Mode&0o111 != 0
		n.Stamp = guestStamp(e)
		if len(e.SHA256) == len(n.Hash) {
			copy(n.Hash[:], e.SHA256)
			n.Hashed = true
		} else if !full && a != nil && a.Kind == File && a.Guest.trusts(n.Stamp) && a.Size == n.Stamp.Size {
			n.Hash, n.Hashed = a.Hash, true
		}
	default:
		n.Kind, n.Err = Other, "neither a file, a directory nor a symbolic link"
	}
	return n
}

func guestStamp(e Entry) Stamp {
	s := Stamp{Size: e.Size, Inode: e.Inode}
	if !e.MTime.IsZero() {
		s.MTime = e.MTime.UnixNano()
	}
	if !e.CTime.IsZero() {
		s.CTime = e.CTime.UnixNano()
	}
	return s
}

// statLimit is the number of files up to which one call each is cheaper than a
// second walk.
const statLimit = 8

// maxUnless bounds a request's size.
const maxUnless = 20_000

// hashGuest has the guest hash the named files. One that changed meanwhile is
// taken as it is then; one that is gone leaves the tree.
func (s *guestScan) hashGuest(ctx context.Context, g Guest, root string, exclude []string, paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	if len(paths) <= statLimit {
		for _, p := range paths {
			e, err := g.Stat(ctx, path.Join(root, p), true)
			if errors.Is(err, ErrNotFound) {
				delete(s.tree, p)
				continue
			}
			if err != nil {
				return guestFault(err, "%q cannot be read in the guest", path.Join(root, p))
			}
			e.Path = p
			s.take(e)
		}
		return nil
	}
	want := make(map[string]bool, len(paths))
	for _, p := range paths {
		want[p] = true
	}
	var unless []Entry
	for p, n := range s.tree {
		if n.Kind == File && !want[p] {
			unless = append(unless, Entry{Path: p, Type: TypeRegular, Size: n.Stamp.Size, MTime: unixNano(n.Stamp.MTime), CTime: unixNano(n.Stamp.CTime), Inode: n.Stamp.Inode})
		}
	}
	if len(unless) > maxUnless {
		unless = unless[:maxUnless] // the rest is hashed for nothing
	}
	slices.SortFunc(unless, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	for e, err := range g.Tree(ctx, TreeRequest{Root: root, Exclude: exclude, Hash: true, HashUnless: unless, MaxEntries: maxEntries}) {
		if err != nil {
			return guestFault(err, "the guest's directory %q cannot be read", root)
		}
		if want[e.Path] {
			delete(want, e.Path)
			s.take(e)
		}
	}
	for p := range want {
		delete(s.tree, p)
	}
	return nil
}

// take replaces a node by a fresh look at it. A file whose hash the guest owes
// is not usable.
func (s *guestScan) take(e Entry) {
	n := guestNode(e, true, nil)
	if n.Kind == File && !n.Hashed {
		n = &Node{Kind: Other, Err: "the guest did not hash it"}
	}
	if old := s.tree[e.Path]; n.Kind == Dir && (old == nil || old.Kind != Dir) {
		n = &Node{Kind: Other, Err: "changed while it was looked at"} // its children are unknown
	}
	s.tree[e.Path] = n
}

// guestFault wraps an error of the guest, unless it is a fault already.
func guestFault(err error, format string, args ...any) error {
	var f *fault.Error
	if errors.As(err, &f) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fault.From(err)
	}
	return fault.Wrap(err, fault.BackendCommandFailed, format, args...).
		Because("the guest or the connection to it failed").
		Next("repeat the call: what was transferred is not transferred again")
}

// clip shows text of the guest: valid UTF-8, bounded.
func clip(s string) string {
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return strings.ToValidUTF8(s, "�")
}

func describeError(err error) string { return clip(fmt.Sprint(err)) }
