package agent

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"sandboxforge/internal/guest/guestv1"
	"sandboxforge/internal/ignore"
)

// tarChunk is the size of one message of a tar stream.
const tarChunk = 128 << 10

// GetTar implements the protocol.
func (s fileService) GetTar(ctx context.Context, req *guestv1.GetTarRequest, stream *connect.ServerStream[guestv1.GetTarResponse]) error {
	root, err := cleanAbs(req.Root)
	if err != nil {
		return err
	}
	t, err := openTree(root)
	if err != nil {
		return fileError(err)
	}
	defer t.close()
	out := &getWriter{stream: stream, max: req.MaxBytes}
	bw := bufio.NewWriterSize(out, tarChunk)
	p := &packer{ctx: ctx, t: t, w: tar.NewWriter(bw), ignore: ignore.New(req.Exclude)}
	if len(req.Paths) == 0 {
		err = p.children(t.fd, "", 0)
	}
	for _, b := range req.Paths {
		rel, cerr := cleanRel(string(b))
		if cerr != nil {
			return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%q: %w", b, cerr))
		}
		if err = p.named(rel); err != nil {
			break
		}
	}
	if err == nil {
		err = p.w.Close()
	}
	if err == nil {
		err = bw.Flush()
	}
	if err != nil {
		return fileError(err)
	}
	if len(p.skipped) > 0 {
		return stream.Send(&guestv1.GetTarResponse{Skipped: p.skipped})
	}
	return nil
}

type getWriter struct {
	stream *connect.ServerStream[guestv1.GetTarResponse]
	n, max uint64
}

func (w *getWriter) Write(p []byte) (int, error) {
	w.n += uint64(len(p))
	if w.max > 0 && w.n > w.max {
		return 0, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("the tar stream is larger than %d bytes", w.max))
	}
	if err := w.stream.Send(&guestv1.GetTarResponse{Data: p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// packer writes files beneath a tree as a tar stream.
type packer struct {
	ctx     context.Context
	t       *dirTree
	w       *tar.Writer
	ignore  *ignore.Matcher
	skipped []string
	buf     []byte
}

func (p *packer) skip(name, format string, args ...any) {
	const most = 10_000
	if len(p.skipped) < most {
		p.skipped = append(p.skipped, note(name, format, args...))
	} else if len(p.skipped) == most {
		p.skipped = append(p.skipped, "and more that is not listed")
	}
}

// named packs what a request names.
func (p *packer) named(rel string) error {
	dir, base, err := p.t.parent(rel)
	if err != nil {
		p.skip(rel, "%s", errno(err))
		return nil
	}
	defer unix.Close(dir)
	return p.one(dir, base, rel, 0)
}

func (p *packer) children(fd int, rel string, depth int) error {
	names, err := listNames(fd)
	if err != nil {
		p.skip(rel, "%s", errno(err))
	}
	for _, n := range names {
		if err := p.one(fd, n, path.Join(rel, n), depth); err != nil {
			return err
		}
	}
	return nil
}

// one packs a file or a directory with what is in it. Only errors of the
// stream are returned.
func (p *packer) one(dir int, base, rel string, depth int) error {
	if p.ctx.Err() != nil {
		return p.ctx.Err()
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		p.skip(rel, "%s", errno(err))
		return nil
	}
	kind := st.Mode & unix.S_IFMT
	if p.ignore.Match(rel, kind == unix.S_IFDIR) {
		return nil
	}
	h := &tar.Header{
		Name: rel, Mode: int64(st.Mode & 0o777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Unix()),
	}
	switch kind {
	case unix.S_IFREG:
		return p.file(dir, base, h)
	case unix.S_IFLNK:
		target, err := readlinkat(dir, base)
		if err != nil {
			p.skip(rel, "%s", errno(err))
			return nil
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, string(target)
		return p.header(h)
	case unix.S_IFDIR:
		if depth >= maxDepth {
			p.skip(rel, "nested too deeply")
			return nil
		}
		fd, err := retry(func() (int, error) {
			return unix.Openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		})
		if err != nil {
			p.skip(rel, "%s", errno(err))
			return nil
		}
		defer unix.Close(fd)
		h.Typeflag, h.Name = tar.TypeDir, rel+"/"
		if err := p.header(h); err != nil {
			return err
		}
		return p.children(fd, rel, depth+1)
	default:
		p.skip(rel, "a special file")
		return nil
	}
}

// header writes a header; a name that tar can't hold is reported.
func (p *packer) header(h *tar.Header) error {
	err := p.w.WriteHeader(h)
	if errors.Is(err, tar.ErrHeader) {
		p.skip(h.Name, "%v", err)
		return nil
	}
	return err
}

func (p *packer) file(dir int, base string, h *tar.Header) error {
	f, err := openRegular(dir, base)
	if err != nil {
		p.skip(h.Name, "%s", errno(err))
		return nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		p.skip(h.Name, "%s", errno(err))
		return nil
	}
	h.Typeflag, h.Size = tar.TypeReg, st.Size()
	if err := p.w.WriteHeader(h); err != nil {
		if errors.Is(err, tar.ErrHeader) {
			p.skip(h.Name, "%v", err)
			return nil
		}
		return err
	}
	if p.buf == nil {
		p.buf = make([]byte, tarChunk)
	}
	left := h.Size
	for left > 0 {
		n, rerr := f.Read(p.buf[:min(int64(len(p.buf)), left)])
		if n > 0 {
			if _, err := p.w.Write(p.buf[:n]); err != nil {
				return err
			}
			left -= int64(n)
		}
		if rerr != nil {
			break
		}
		if p.ctx.Err() != nil {
			return p.ctx.Err()
		}
	}
	switch after, err := f.Stat(); {
	case left > 0:
		// The header has promised its size.
		p.skip(h.Name, "became shorter while it was read: its end is zeros")
		clear(p.buf)
		for left > 0 {
			n, err := p.w.Write(p.buf[:min(int64(len(p.buf)), left)])
			if err != nil {
				return err
			}
			left -= int64(n)
		}
	case err == nil && (after.Size() != st.Size() || !after.ModTime().Equal(st.ModTime())):
		p.skip(h.Name, "changed while it was read")
	}
	return nil
}

// listNames lists a directory in byte order.
func listNames(fd int) ([]string, error) {
	dup, err := retry(func() (int, error) {
		return unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(dup), ".")
	defer f.Close()
	names, err := f.Readdirnames(-1)
	sortNames(names)
	return names, err
}
