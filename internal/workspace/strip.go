package workspace

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"path"
	"strings"
)

// maxStripped bounds the files that are stripped, in bytes; a larger one counts
// as unreadable, lest its private part gets across.
const maxStripped = 1 << 20

// strip looks into the files that Request.Strip names and keeps of each what is
// synced. A file of which nothing is left, and which no sync ever saw, exists
// only for its private part: the other side does not get it.
func (s *session) strip(ctx context.Context) error {
	for p, cut := range s.Strip {
		if s.host.matcher.Match(p, false) {
			continue
		}
		h, g := s.host.tree[p], s.guest.tree[p]
		if h != nil && h.Kind == File {
			s.stripNode(h, cut, func() ([]byte, error) { return s.readHost(p) })
			if h.Kind == Other {
				s.host.skipped = append(s.host.skipped, Problem{p, h.Err})
			}
		}
		if g != nil && g.Kind == File {
			s.stripNode(g, cut, func() ([]byte, error) { return s.readGuest(ctx, p, g) })
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if s.anc[p] != nil {
			continue
		}
		switch hollow := func(n *Node) bool { return n != nil && n.Content != nil && len(n.Content) == 0 }; {
		case !hollow(h) && !hollow(g):
		case h == nil:
			s.guest.tree.drop(p, s.anc, s.host.tree)
		case g == nil:
			s.host.tree.drop(p, s.anc, s.guest.tree)
		case h.Kind == File && g.Kind == File:
			// Where nothing is left, that side has nothing to lose.
			exec := h.Exec
			if hollow(g) {
				exec = g.Exec
			}
			s.anc[p] = &Ancestor{Kind: File, Exec: exec, Hash: sha256.Sum256(nil), Put: true}
		}
	}
	return nil
}

func (s *session) stripNode(n *Node, cut func([]byte) ([]byte, bool, error), read func() ([]byte, error)) {
	if n.Stamp.Size > maxStripped {
		*n = Node{Kind: Other, Err: "it is too large to take its private part out"}
		return
	}
	data, err := read()
	if err != nil {
		*n = Node{Kind: Other, Err: plainError(err)}
		return
	}
	rest, found, err := cut(data)
	switch {
	case err != nil:
		*n = Node{Kind: Other, Err: clip(err.Error())}
		return
	case !found:
		return
	}
	n.Content = append([]byte{}, rest...)
	n.Hash, n.Hashed = sha256.Sum256(n.Content), true
}

func (s *session) readHost(p string) ([]byte, error) {
	dir, name, err := s.root.Parent(p)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.ReadFile(name, maxStripped)
}

func (s *session) readGuest(ctx context.Context, p string, n *Node) (data []byte, err error) {
	failed, err := receive(ctx, s.Guest, s.remote, []string{p}, func(string) *Node { return n }, func(_ string, _ *Node, r io.Reader) error {
		data, err = io.ReadAll(r)
		return err
	})
	if err == nil && len(failed) > 0 {
		err = errors.New(failed[0].Reason)
	}
	return data, err
}

// drop takes a path out of a tree, and the directories that are there only for
// it.
func (t Tree) drop(p string, anc map[string]*Ancestor, other Tree) {
	delete(t, p)
	for d := path.Dir(p); d != "." && anc[d] == nil && other[d] == nil; d = path.Dir(d) {
		for q := range t {
			if strings.HasPrefix(q, d+"/") {
				return
			}
		}
		delete(t, d)
	}
}
