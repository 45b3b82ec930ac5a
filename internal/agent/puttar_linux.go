package agent

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"sandboxforge/internal/guest/guestv1"
)

// maxEntries bounds what one call puts or one Tree lists by default.
const maxEntries = 1_000_000

// maxPut bounds the entries of one PutTar, whose answer is one message.
const maxPut = 400_000

// PutTar implements the protocol.
func (s fileService) PutTar(ctx context.Context, stream *connect.ClientStream[guestv1.PutTarRequest]) (*guestv1.PutTarResponse, error) {
	if !stream.Receive() {
		if err := stream.Err(); err != nil {
			return nil, err
		}
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("an empty PutTar"))
	}
	open := stream.Msg().GetOpen()
	if open == nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the first message of PutTar must be an open"))
	}
	// The message is reused by the stream.
	root, err := cleanAbs(open.Root)
	if err != nil {
		return nil, err
	}
	o, err := s.a.owner(open.Owner)
	if err != nil {
		return nil, fileError(err)
	}
	var removals []string
	for _, p := range open.RemoveFirst {
		rel, err := cleanRel(string(p))
		if err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%q: %w", p, err))
		}
		removals = append(removals, rel)
	}
	keep := open.KeepExisting
	t, err := makeTree(root, o, 0o755)
	if err != nil {
		return nil, fileError(err)
	}
	defer t.close()

	u := &unpacker{ctx: ctx, t: t, o: o, keep: keep, parent: -1, out: &guestv1.PutTarResponse{}}
	defer u.close()
	for _, rel := range removals {
		if _, err := t.remove(rel, false); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			u.skip(rel, "not removed: %s", errno(err))
		}
	}
	if err := u.unpack(&putReader{stream: stream}); err != nil {
		return nil, err
	}
	return u.out, nil
}

// putReader is the tar stream of a PutTar.
type putReader struct {
	stream *connect.ClientStream[guestv1.PutTarRequest]
	rest   []byte
}

func (r *putReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if !r.stream.Receive() {
			if err := r.stream.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		r.rest = r.stream.Msg().GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// unpacker writes a tar stream beneath a tree.
type unpacker struct {
	ctx  context.Context
	t    *dirTree
	o    owner
	keep bool
	out  *guestv1.PutTarResponse

	parentName string // of the cached descriptor
	parent     int
	dirs       []*tar.Header // modes and times are set when all is written
	names      []string
	buf        []byte
}

func (u *unpacker) close() {
	if u.parent >= 0 {
		unix.Close(u.parent)
	}
}

func (u *unpacker) skip(name, format string, args ...any) {
	u.out.Skipped = append(u.out.Skipped, note(name, format, args...))
}

// unpack reads the whole stream. A refused entry is skipped and reported; an
// error of the stream or of the disk ends it, with everything that was written
// so far whole.
func (u *unpacker) unpack(r io.Reader) error {
	br := bufio.NewReaderSize(r, 64<<10)
	tr := tar.NewReader(br)
	for n := 0; ; n++ {
		if u.ctx.Err() != nil {
			return u.ctx.Err()
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return streamError(err)
		}
		if n >= maxPut {
			return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("more than %d entries in one tar stream", maxPut))
		}
		if err := u.entry(h, tr); err != nil {
			return err
		}
	}
	// What follows the end mark is padding.
	if _, err := io.Copy(io.Discard, br); err != nil {
		return streamError(err)
	}
	return u.finishDirs()
}

func streamError(err error) error {
	var ce *connect.Error
	if errors.As(err, &ce) {
		return err
	}
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("the tar stream is damaged: %w", err))
}

func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if h.Typeflag == tar.TypeDir && path.Clean(h.Name) == "." {
		return nil // the root: it has its own mode
	}
	rel, err := cleanRel(h.Name)
	if err != nil {
		u.skip(h.Name, "%v", err)
		return nil
	}
	if h.Mode&0o7000 != 0 && h.Typeflag != tar.TypeSymlink {
		u.skip(rel, "setuid, setgid and sticky bits were removed")
	}
	switch h.Typeflag {
	case tar.TypeDir:
		fd, err := u.t.mkdirAll(rel, u.o, 0o755)
		if err != nil {
			return u.refuse(rel, err)
		}
		unix.Close(fd)
		u.dirs, u.names = append(u.dirs, h), append(u.names, rel)
		return nil
	case tar.TypeReg, 0, tar.TypeGNUSparse: // 0 stands in old streams
		return u.file(rel, h, r)
	case tar.TypeSymlink:
		return u.place(rel, func(dir int, tmp string) error {
			if err := unix.Symlinkat(h.Linkname, dir, tmp); err != nil {
				return err
			}
			if u.o.uid >= 0 {
				return unix.Fchownat(dir, tmp, u.o.uid, u.o.gid, unix.AT_SYMLINK_NOFOLLOW)
			}
			return nil
		})
	case tar.TypeLink:
		target, err := cleanRel(h.Linkname)
		if err != nil {
			u.skip(rel, "hard link to %q: %v", h.Linkname, err)
			return nil
		}
		fd, err := u.t.open(target, unix.O_PATH, 0)
		if err != nil {
			return u.refuse(rel, err)
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			u.skip(rel, "hard link to something that is no file")
			return nil
		}
		return u.place(rel, func(dir int, tmp string) error {
			return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), dir, tmp, unix.AT_SYMLINK_FOLLOW)
		})
	default:
		u.skip(rel, "a device, FIFO or other special file (type %q)", h.Typeflag)
		return nil
	}
}

// refuse decides whether an error is one entry's or the whole call's.
func (u *unpacker) refuse(rel string, err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EIO), errors.Is(err, unix.EMFILE):
		return fileError(fmt.Errorf("%s: %w", rel, err))
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		u.skip(rel, "a symlink, or what is no directory, is in its path")
	default:
		u.skip(rel, "%s", errno(err))
	}
	return nil
}

// dir opens the directory of a name, making it if needed. The last one is kept:
// streams go directory by directory.
func (u *unpacker) dir(rel string) (int, error) {
	d := path.Dir(rel)
	if u.parent >= 0 && u.parentName == d {
		return u.parent, nil
	}
	var fd int
	var err error
	if d == "." {
		fd, err = u.t.open(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	} else {
		fd, err = u.t.mkdirAll(d, u.o, 0o755)
	}
	if err != nil {
		return -1, err
	}
	u.close()
	u.parent, u.parentName = fd, d
	return fd, nil
}

// place makes something under a temporary name and renames it.
func (u *unpacker) place(rel string, make func(dir int, tmp string) error) error {
	dir, err := u.dir(rel)
	if err != nil {
		return u.refuse(rel, err)
	}
	tmp := tempName()
	if err := make(dir, tmp); err != nil {
		unix.Unlinkat(dir, tmp, 0) //nolint:errcheck // it may not be there
		return u.refuse(rel, err)
	}
	if !u.rename(dir, tmp, rel) {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, path.Base(rel), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return u.refuse(rel, err)
	}
	e := entryOf(rel, &st)
	if e.Type == guestv1.FileType_FILE_TYPE_SYMLINK {
		e.LinkTarget, _ = readlinkat(dir, path.Base(rel))
	}
	u.out.Files++
	u.out.Entries = append(u.out.Entries, e)
	return nil
}

// rename makes a finished file appear, or removes it and reports why not.
func (u *unpacker) rename(dir int, tmp, rel string) bool {
	base := path.Base(rel)
	var err error
	if u.keep {
		err = unix.Renameat2(dir, tmp, dir, base, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
			// File systems without that call have link.
			if err = unix.Linkat(dir, tmp, dir, base, 0); err == nil {
				unix.Unlinkat(dir, tmp, 0) //nolint:errcheck // it was just made
			}
		}
	} else {
		err = unix.Renameat(dir, tmp, dir, base)
	}
	if err == nil {
		return true
	}
	unix.Unlinkat(dir, tmp, 0) //nolint:errcheck // best effort
	switch {
	case errors.Is(err, unix.EEXIST):
		u.skip(rel, "exists, kept")
	case errors.Is(err, unix.EISDIR):
		u.skip(rel, "a directory is there")
	default:
		u.skip(rel, "%s", errno(err))
	}
	return false
}

func (u *unpacker) file(rel string, h *tar.Header, r io.Reader) error {
	dir, err := u.dir(rel)
	if err != nil {
		return u.refuse(rel, err)
	}
	if h.Size > 64<<20 {
		// Fail before the disk is full rather than after.
		var fs unix.Statfs_t
		if err := unix.Fstatfs(dir, &fs); err == nil && uint64(h.Size) > fs.Bavail*uint64(fs.Bsize) {
			return fileError(fmt.Errorf("%s of %d bytes: %w", rel, h.Size, unix.ENOSPC))
		}
	}
	tmp := tempName()
	fd, err := retry(func() (int, error) {
		return unix.Openat(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return u.refuse(rel, err)
	}
	defer unix.Close(fd)
	n, err := u.fill(fd, r)
	u.out.Bytes += uint64(n)
	if err != nil {
		unix.Unlinkat(dir, tmp, 0) //nolint:errcheck // best effort
		var e unix.Errno
		if errors.As(err, &e) {
			return fileError(fmt.Errorf("%s: %w", rel, err))
		}
		return streamError(err)
	}
	if err = u.o.give(fd); err == nil {
		err = unix.Fchmod(fd, uint32(h.Mode)&0o777)
	}
	if err == nil && !h.ModTime.IsZero() {
		ts := timespec(h.ModTime)
		err = utimes(fd, ts)
	}
	if err != nil {
		unix.Unlinkat(dir, tmp, 0) //nolint:errcheck // best effort
		return u.refuse(rel, err)
	}
	if !u.rename(dir, tmp, rel) {
		return nil
	}
	// After the rename, which changes ctime.
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fileError(err)
	}
	u.out.Files++
	u.out.Entries = append(u.out.Entries, entryOf(rel, &st))
	return nil
}

func (u *unpacker) fill(fd int, r io.Reader) (int64, error) {
	if u.buf == nil {
		u.buf = make([]byte, 128<<10)
	}
	var total int64
	for {
		n, err := r.Read(u.buf)
		for b := u.buf[:n]; len(b) > 0; {
			w, werr := unix.Write(fd, b)
			if errors.Is(werr, unix.EINTR) {
				continue
			}
			if werr != nil {
				return total, werr
			}
			b = b[w:]
			total += int64(w)
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// utimes sets the modification time of an open file.
func utimes(fd int, ts unix.Timespec) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd),
		[]unix.Timespec{{Nsec: unix.UTIME_OMIT}, ts}, 0)
}

// finishDirs gives directories their modes and times, the deepest first.
func (u *unpacker) finishDirs() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		fd, err := u.t.open(u.names[i], unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			if err := u.refuse(u.names[i], err); err != nil {
				return err
			}
			continue
		}
		h := u.dirs[i]
		err = unix.Fchmod(fd, uint32(h.Mode)&0o777)
		if err == nil && !h.ModTime.IsZero() {
			err = utimes(fd, timespec(h.ModTime))
		}
		var st unix.Stat_t
		if err == nil {
			err = unix.Fstat(fd, &st)
		}
		unix.Close(fd)
		if err != nil {
			if err := u.refuse(u.names[i], err); err != nil {
				return err
			}
			continue
		}
		u.out.Entries = append(u.out.Entries, entryOf(u.names[i], &st))
	}
	return nil
}
