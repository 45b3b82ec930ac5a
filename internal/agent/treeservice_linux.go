package agent

import (
	"bytes"
	"context"
	"errors"
	"path"
	"slices"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"sandboxforge/internal/guest/guestv1"
	"sandboxforge/internal/ignore"
)

func sortNames(names []string) { slices.Sort(names) }

// batch bounds one message of a Tree.
const (
	batchEntries = 1000
	batchBytes   = 256 << 10
)

// errEnough stops a walk at its bound.
var errEnough = errors.New("enough")

// Tree implements the protocol.
func (s fileService) Tree(ctx context.Context, req *guestv1.TreeRequest, stream *connect.ServerStream[guestv1.TreeResponse]) error {
	root, err := cleanAbs(req.Root)
	if err != nil {
		return err
	}
	t, err := openTree(root)
	if err != nil {
		return fileError(err)
	}
	defer t.close()
	w := &walker{ctx: ctx, stream: stream, ignore: ignore.New(req.Exclude), hash: req.Hash, left: req.MaxEntries}
	if w.left == 0 {
		w.left = maxEntries
	}
	if len(req.HashUnless) > 0 {
		w.known = make(map[string]*guestv1.Entry, len(req.HashUnless))
		for _, e := range req.HashUnless {
			w.known[string(e.Path)] = e
		}
	}
	err = w.children(t.fd, "", 0)
	if err != nil && !errors.Is(err, errEnough) {
		return fileError(err)
	}
	w.msg.Truncated = err != nil
	if len(w.msg.Entries) > 0 || w.msg.Truncated {
		return stream.Send(&w.msg)
	}
	return nil
}

type walker struct {
	ctx    context.Context
	stream *connect.ServerStream[guestv1.TreeResponse]
	ignore *ignore.Matcher
	hash   bool
	known  map[string]*guestv1.Entry
	left   uint64
	msg    guestv1.TreeResponse
	bytes  int
}

func (w *walker) add(e *guestv1.Entry) error {
	if w.left == 0 {
		return errEnough
	}
	w.left--
	w.msg.Entries = append(w.msg.Entries, e)
	w.bytes += len(e.Path) + len(e.LinkTarget) + 64
	if len(w.msg.Entries) < batchEntries && w.bytes < batchBytes {
		return nil
	}
	err := w.stream.Send(&w.msg)
	w.msg.Reset()
	w.bytes = 0
	return err
}

func (w *walker) children(fd int, rel string, depth int) error {
	names, err := listNames(fd)
	if err != nil {
		if err := w.add(&guestv1.Entry{Path: []byte(orDot(rel)), Type: guestv1.FileType_FILE_TYPE_DIRECTORY, Error: "listing: " + errno(err)}); err != nil {
			return err
		}
	}
	for _, n := range names {
		if err := w.one(fd, n, path.Join(rel, n), depth); err != nil {
			return err
		}
	}
	return nil
}

func orDot(rel string) string {
	if rel == "" {
		return "."
	}
	return rel
}

func (w *walker) one(dir int, base, rel string, depth int) error {
	if w.ctx.Err() != nil {
		return w.ctx.Err()
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil // removed since it was listed
		}
		return w.add(&guestv1.Entry{Path: []byte(rel), Error: errno(err)})
	}
	e := entryOf(rel, &st)
	isDir := e.Type == guestv1.FileType_FILE_TYPE_DIRECTORY
	if w.ignore.Match(rel, isDir) {
		return nil
	}
	switch e.Type {
	case guestv1.FileType_FILE_TYPE_SYMLINK:
		target, err := readlinkat(dir, base)
		if err != nil {
			e.Error = errno(err)
		}
		e.LinkTarget = target
	case guestv1.FileType_FILE_TYPE_REGULAR:
		if w.hash && !w.knows(e) {
			f, err := openRegular(dir, base)
			if err == nil {
				e.Sha256, err = hashFile(w.ctx, f)
				f.Close()
			}
			if err != nil {
				if w.ctx.Err() != nil {
					return w.ctx.Err()
				}
				e.Error = errno(err)
			}
		}
	}
	if !isDir {
		return w.add(e)
	}
	if depth >= maxDepth {
		e.Error = "nested too deeply"
		return w.add(e)
	}
	fd, err := retry(func() (int, error) {
		return unix.Openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		e.Error = errno(err)
		return w.add(e)
	}
	defer unix.Close(fd)
	if err := w.add(e); err != nil {
		return err
	}
	return w.children(fd, rel, depth+1)
}

// knows says whether the caller knows the hash of a file in this state.
func (w *walker) knows(e *guestv1.Entry) bool {
	k := w.known[string(e.Path)]
	return k != nil && k.Size == e.Size && k.MtimeUnixNs == e.MtimeUnixNs && k.CtimeUnixNs == e.CtimeUnixNs &&
		k.Inode == e.Inode && bytes.Equal(k.Path, e.Path)
}
