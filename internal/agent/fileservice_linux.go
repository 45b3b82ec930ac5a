package agent

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"sandboxforge/internal/guest/guestv1"
)

// fileService is the Files service.
type fileService struct{ a *Agent }

const maxFileMessage = 1 << 20

func (s fileService) Stat(ctx context.Context, req *guestv1.StatRequest) (*guestv1.StatResponse, error) {
	name, err := cleanAbs(req.Path)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return nil, fileError(&os.PathError{Op: "stat", Path: name, Err: err})
	}
	e := entryOf(name, &st)
	switch e.Type {
	case guestv1.FileType_FILE_TYPE_SYMLINK:
		if e.LinkTarget, err = readlinkat(unix.AT_FDCWD, name); err != nil {
			return nil, fileError(err)
		}
	case guestv1.FileType_FILE_TYPE_REGULAR:
		if req.Hash {
			f, err := openRegular(unix.AT_FDCWD, name)
			if err != nil {
				return nil, fileError(err)
			}
			defer f.Close()
			if e.Sha256, err = hashFile(ctx, f); err != nil {
				return nil, fileError(err)
			}
		}
	}
	return &guestv1.StatResponse{Entry: e}, nil
}

// openRegular opens a regular file for reading. A FIFO or device that took its
// place is refused, not waited for.
func openRegular(dir int, name string) (*os.File, error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return regular(fd, name)
}

// regular takes a descriptor that was opened non-blocking.
func regular(fd int, name string) (*os.File, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = unix.EINVAL
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			err = unix.EISDIR
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	unix.SetNonblock(fd, false) //nolint:errcheck // a regular file
	return os.NewFile(uintptr(fd), name), nil
}

func hashFile(ctx context.Context, f io.Reader) ([]byte, error) {
	h := sha256.New()
	buf := make([]byte, 128<<10)
	for {
		n, err := f.Read(buf)
		h.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			return h.Sum(nil), nil
		}
		if err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

func (s fileService) Read(_ context.Context, req *guestv1.ReadFileRequest) (*guestv1.ReadFileResponse, error) {
	name, err := cleanAbs(req.Path)
	if err != nil {
		return nil, err
	}
	// The host named the path: a symlink in it is followed.
	fd, err := retry(func() (int, error) {
		return unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	})
	if err != nil {
		return nil, fileError(&os.PathError{Op: "open", Path: name, Err: err})
	}
	f, err := regular(fd, name)
	if err != nil {
		return nil, fileError(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fileError(err)
	}
	want := req.MaxBytes
	if want == 0 || want > maxFileMessage {
		want = maxFileMessage
	}
	if req.Offset > 1<<62 {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("offset out of range"))
	}
	buf := make([]byte, want)
	n, err := f.ReadAt(buf, int64(req.Offset))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fileError(err)
	}
	return &guestv1.ReadFileResponse{Data: buf[:n], Size: uint64(st.Size())}, nil
}

func (s fileService) Write(_ context.Context, req *guestv1.WriteFileRequest) (*guestv1.WriteFileResponse, error) {
	name, err := cleanAbs(req.Path)
	if err != nil {
		return nil, err
	}
	if len(req.Data) > maxFileMessage {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%d bytes; at most %d in one write", len(req.Data), maxFileMessage))
	}
	o, err := s.a.owner(req.Owner)
	if err != nil {
		return nil, fileError(err)
	}
	dir, base := path.Split(name)
	if base == "" {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("the root directory is no file"))
	}
	t, err := openTree(dir)
	if err != nil {
		return nil, fileError(err)
	}
	defer t.close()
	mode := req.Mode & 0o777
	if req.Mode == 0 {
		mode = 0o644
	}
	tmp := tempName()
	f, err := createTemp(t.fd, tmp)
	if err != nil {
		return nil, fileError(err)
	}
	defer f.Close()
	_, err = f.Write(req.Data)
	if err == nil {
		err = o.give(int(f.Fd()))
	}
	if err == nil {
		err = unix.Fchmod(int(f.Fd()), mode)
	}
	if err == nil {
		err = unix.Renameat(t.fd, tmp, t.fd, base)
	}
	if err != nil {
		unix.Unlinkat(t.fd, tmp, 0) //nolint:errcheck // best effort
		return nil, fileError(&os.PathError{Op: "write", Path: name, Err: err})
	}
	return &guestv1.WriteFileResponse{}, nil
}

// tempPrefix starts the names of files that are being written.
const tempPrefix = ".sandboxforge-tmp-"

func tempName() string {
	var b [8]byte
	rand.Read(b[:])
	return tempPrefix + hex.EncodeToString(b[:])
}

func createTemp(dir int, name string) (*os.File, error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return nil, &os.PathError{Op: "create", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (s fileService) Remove(ctx context.Context, req *guestv1.RemoveRequest) (*guestv1.RemoveResponse, error) {
	root, err := cleanAbs(req.Root)
	if err != nil {
		return nil, err
	}
	out := &guestv1.RemoveResponse{}
	t, err := openTree(root)
	if errors.Is(err, unix.ENOENT) {
		return out, nil
	}
	if err != nil {
		return nil, fileError(err)
	}
	defer t.close()
	for _, p := range req.Paths {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		rel, err := cleanRel(string(p))
		if err != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%q: %w", p, err))
		}
		removed, err := t.remove(rel, req.Recursive)
		switch {
		case err != nil:
			out.Failed = append(out.Failed, note(rel, "%s", errno(err)))
		case removed:
			out.Removed = append(out.Removed, p)
		}
	}
	return out, nil
}

// remove removes one name beneath the tree; a missing one is no error.
func (t *dirTree) remove(rel string, recursive bool) (bool, error) {
	dir, base, err := t.parent(rel)
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return false, nil
		}
		return false, err
	}
	defer unix.Close(dir)
	return removeAt(dir, base, recursive, 0)
}

// maxDepth bounds recursion into directories that hostile names nest.
const maxDepth = 512

func removeAt(dir int, base string, recursive bool, depth int) (bool, error) {
	err := unix.Unlinkat(dir, base, 0)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM):
		return false, err
	}
	err = unix.Unlinkat(dir, base, unix.AT_REMOVEDIR)
	if err == nil {
		return true, nil
	}
	if !recursive || !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return false, err
	}
	if depth >= maxDepth {
		return false, unix.ENAMETOOLONG
	}
	fd, err := retry(func() (int, error) {
		return unix.Openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return false, err
	}
	f := os.NewFile(uintptr(fd), base)
	names, err := f.Readdirnames(-1)
	for _, n := range names {
		if _, rerr := removeAt(fd, n, true, depth+1); rerr != nil {
			err = errors.Join(err, rerr)
		}
	}
	f.Close()
	if err != nil {
		return false, err
	}
	if err := unix.Unlinkat(dir, base, unix.AT_REMOVEDIR); err != nil {
		return false, err
	}
	return true, nil
}

func (s fileService) MakeDir(_ context.Context, req *guestv1.MakeDirRequest) (*guestv1.MakeDirResponse, error) {
	name, err := cleanAbs(req.Path)
	if err != nil {
		return nil, err
	}
	u, err := s.a.users.lookup(req.Owner)
	if err != nil {
		return nil, fileError(err)
	}
	o, err := s.a.owner(req.Owner)
	if err != nil {
		return nil, fileError(err)
	}
	mode := req.Mode & 0o777
	if mode == 0 {
		mode = 0o755
	}
	t, err := makeTree(name, o, mode)
	if err != nil {
		return nil, fileError(err)
	}
	defer t.close()
	var st unix.Stat_t
	if err := unix.Fstat(t.fd, &st); err != nil {
		return nil, fileError(err)
	}
	return &guestv1.MakeDirResponse{Writable: u.canWrite(&st) && !readOnly(t.fd)}, nil
}

// canWrite says whether the permission bits let the user make files in a
// directory. Access lists are not looked at.
func (u *user) canWrite(st *unix.Stat_t) bool {
	const wx = 3
	switch {
	case u.uid == 0:
		return true
	case st.Uid == u.uid:
		return st.Mode>>6&wx == wx
	}
	for _, g := range append([]uint32{u.gid}, u.groups...) {
		if g == st.Gid {
			return st.Mode>>3&wx == wx
		}
	}
	return st.Mode&wx == wx
}

func readOnly(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && st.Flags&unix.ST_RDONLY != 0
}
