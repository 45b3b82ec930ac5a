package workspace

import (
	"context"
	"errors"
	"io"
	"iter"

	"sandboxforge/internal/guest"
)

// FromClient makes a Guest of a guest client.
func FromClient(c *guest.Client) Guest { return clientGuest{c} }

type clientGuest struct{ c *guest.Client }

func fromGuest(e guest.Entry) Entry {
	t := TypeOther
	switch e.Type {
	case guest.TypeRegular:
		t = TypeRegular
	case guest.TypeDir:
		t = TypeDir
	case guest.TypeSymlink:
		t = TypeSymlink
	}
	return Entry{Path: e.Path, Type: t, Mode: e.Mode, Size: e.Size, MTime: e.MTime, CTime: e.CTime, Inode: e.Inode,
		SHA256: e.SHA256, LinkTarget: e.LinkTarget, Error: e.Error}
}

func fromGuests(list []guest.Entry) []Entry {
	out := make([]Entry, len(list))
	for i, e := range list {
		out[i] = fromGuest(e)
	}
	return out
}

// kind adds this package's error kinds to those of the client.
func kind(err error) error {
	switch {
	case errors.Is(err, guest.ErrNotFound):
		return errors.Join(err, ErrNotFound)
	case errors.Is(err, guest.ErrTruncated):
		return errors.Join(err, ErrTruncated)
	}
	return err
}

func (g clientGuest) Stat(ctx context.Context, path string, hash bool) (Entry, error) {
	e, err := g.c.Stat(ctx, path, hash)
	return fromGuest(e), kind(err)
}

func (g clientGuest) Tree(ctx context.Context, r TreeRequest) iter.Seq2[Entry, error] {
	req := guest.TreeRequest{Root: r.Root, Exclude: r.Exclude, Hash: r.Hash, MaxEntries: r.MaxEntries}
	for _, e := range r.HashUnless {
		req.HashUnless = append(req.HashUnless, guest.Entry{Path: e.Path, Type: guest.TypeRegular, Size: e.Size, MTime: e.MTime, CTime: e.CTime, Inode: e.Inode})
	}
	return func(yield func(Entry, error) bool) {
		for e, err := range g.c.Tree(ctx, req) {
			if !yield(fromGuest(e), kind(err)) {
				return
			}
		}
	}
}

func (g clientGuest) Glob(ctx context.Context, base string, patterns []string, most int) ([]GlobMatch, error) {
	list, err := g.c.Glob(ctx, base, patterns, uint64(max(most, 0)))
	out := make([]GlobMatch, len(list))
	for i, m := range list {
		out[i] = GlobMatch{Pattern: m.Pattern, Entries: fromGuests(m.Entries), Error: m.Error}
	}
	return out, kind(err)
}

func (g clientGuest) PutTar(ctx context.Context, p PutTar, r io.Reader) (PutResult, error) {
	res, err := g.c.PutTar(ctx, guest.PutTar{Root: p.Root, Owner: p.Owner, KeepExisting: p.KeepExisting}, r)
	return PutResult{Entries: fromGuests(res.Entries), Skipped: res.Skipped}, kind(err)
}

func (g clientGuest) GetTar(ctx context.Context, t GetTar) (io.ReadCloser, error) {
	s, err := g.c.GetTar(ctx, guest.GetTar{Root: t.Root, Paths: t.Paths, MaxBytes: t.MaxBytes})
	if err != nil {
		return nil, kind(err)
	}
	return s, nil
}

func (g clientGuest) Remove(ctx context.Context, root string, paths []string, recursive bool) (removed, failed []string, err error) {
	res, err := g.c.Remove(ctx, root, paths, recursive)
	return res.Removed, res.Failed, kind(err)
}
