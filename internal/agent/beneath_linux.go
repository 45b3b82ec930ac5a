package agent

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"sandboxforge/internal/guest/guestv1"
)

// dirTree is a directory below which names are resolved without following any
// symlink and without leaving it.
type dirTree struct {
	fd   int
	path string
}

// openTree opens the directory that a request names. Symlinks in that path are
// followed: the host named it. They are not below it.
func openTree(name string) (*dirTree, error) {
	fd, err := retry(func() (int, error) {
		return unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return &dirTree{fd: fd, path: name}, nil
}

func (t *dirTree) close() { unix.Close(t.fd) }

// noOpenat2 is set where the kernel (before 5.6) or a sandbox has no openat2.
var noOpenat2 atomic.Bool

// open opens a clean relative name beneath the tree. A symlink anywhere in it,
// its last component included, is ELOOP.
func (t *dirTree) open(rel string, flags int, mode uint32) (int, error) {
	flags |= unix.O_CLOEXEC | unix.O_NOFOLLOW
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NOCTTY // openat2 refuses it together with O_PATH
	}
	if !noOpenat2.Load() {
		how := unix.OpenHow{
			Flags: uint64(flags), Mode: uint64(mode),
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		}
		fd, err := retry(func() (int, error) { return unix.Openat2(t.fd, rel, &how) })
		if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
			return fd, err
		}
		if errors.Is(err, unix.ENOSYS) {
			noOpenat2.Store(true)
		}
	}
	return t.walk(rel, flags, mode)
}

// walk is open by single steps.
func (t *dirTree) walk(rel string, flags int, mode uint32) (int, error) {
	dir := t.fd
	for {
		first, rest, more := strings.Cut(rel, "/")
		f, m := flags, mode
		if more {
			f, m = unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0
		}
		fd, err := retry(func() (int, error) { return unix.Openat(dir, first, f, m) })
		if dir != t.fd {
			unix.Close(dir)
		}
		if err != nil || !more {
			return fd, err
		}
		dir, rel = fd, rest
	}
}

// parent opens the directory that holds rel.
func (t *dirTree) parent(rel string) (dir int, base string, err error) {
	d, base := path.Split(rel)
	if d = strings.TrimSuffix(d, "/"); d == "" {
		d = "."
	}
	fd, err := t.open(d, unix.O_PATH|unix.O_DIRECTORY, 0)
	return fd, base, err
}

// busyTries bounds retry: the pauses add up to half a second.
const busyTries = 10

// retry repeats a call that was interrupted, and for a moment one that says
// EAGAIN: a rename meanwhile, or a lease on the file, which a process of the
// guest may keep as long as it likes.
func retry(f func() (int, error)) (int, error) {
	for try := 0; ; {
		n, err := f()
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EAGAIN):
			return n, err
		}
		if try++; try == busyTries {
			return n, err
		}
		time.Sleep(time.Millisecond << (try - 1))
	}
}

var errBadName = errors.New("not a name beneath the root")

// cleanRel checks a relative name: no NUL, not absolute, no "..", not the root
// itself.
func cleanRel(name string) (string, error) {
	if name == "" || name[0] == '/' || strings.IndexByte(name, 0) >= 0 || len(name) > unix.PathMax {
		return "", errBadName
	}
	for c := range strings.SplitSeq(name, "/") {
		if c == ".." || len(c) > 255 {
			return "", errBadName
		}
	}
	name = path.Clean(name)
	if name == "." {
		return "", errBadName
	}
	return name, nil
}

// cleanAbs checks an absolute path of a request.
func cleanAbs(b []byte) (string, error) {
	name := string(b)
	if name == "" || name[0] != '/' || strings.IndexByte(name, 0) >= 0 {
		return "", connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%q is not an absolute path", name))
	}
	return path.Clean(name), nil
}

// entryOf describes a file by its stat.
func entryOf(name string, st *unix.Stat_t) *guestv1.Entry {
	e := &guestv1.Entry{
		Path: []byte(name), Mode: st.Mode & 0o7777, Size: uint64(st.Size),
		MtimeUnixNs: st.Mtim.Nano(), CtimeUnixNs: st.Ctim.Nano(), Inode: st.Ino, Uid: st.Uid, Gid: st.Gid,
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Type = guestv1.FileType_FILE_TYPE_REGULAR
	case unix.S_IFDIR:
		e.Type = guestv1.FileType_FILE_TYPE_DIRECTORY
	case unix.S_IFLNK:
		e.Type = guestv1.FileType_FILE_TYPE_SYMLINK
	default:
		e.Type = guestv1.FileType_FILE_TYPE_OTHER
	}
	return e
}

func readlinkat(dir int, name string) ([]byte, error) {
	buf := make([]byte, unix.PathMax)
	n, err := retry(func() (int, error) { return unix.Readlinkat(dir, name, buf) })
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}

// errno strips an error to what the system said, for messages that carry the
// name already.
func errno(err error) string {
	var e unix.Errno
	if errors.As(err, &e) {
		return e.Error()
	}
	return strings.ToValidUTF8(err.Error(), "\uFFFD")
}

// fileError gives an error of the file system the code that the host acts on.
func fileError(err error) error {
	var ce *connect.Error
	if errors.As(err, &ce) {
		return err
	}
	code := connect.CodeInternal
	switch {
	case errors.Is(err, errNoUser), errors.Is(err, errBadName):
		code = connect.CodeInvalidArgument
	case errors.Is(err, unix.ENOENT):
		code = connect.CodeNotFound
	case errors.Is(err, unix.EEXIST):
		code = connect.CodeAlreadyExists
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		code = connect.CodePermissionDenied
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
		code = connect.CodeResourceExhausted
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENOTEMPTY),
		errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL):
		code = connect.CodeFailedPrecondition
	}
	return connect.NewError(code, errors.New(strings.ToValidUTF8(err.Error(), "\uFFFD")))
}

// note is a line of a skipped or failed list.
func note(name, format string, args ...any) string {
	return strings.ToValidUTF8(name+": "+fmt.Sprintf(format, args...), "\uFFFD")
}

// owner is who gets new files; ids of -1 leave them to the agent's user.
type owner struct{ uid, gid int }

func (a *Agent) owner(name string) (owner, error) {
	u, err := a.users.lookup(name)
	if err != nil {
		return owner{}, err
	}
	if u.self() {
		return owner{-1, -1}, nil
	}
	return owner{int(u.uid), int(u.gid)}, nil
}

func (o owner) give(fd int) error {
	if o.uid < 0 {
		return nil
	}
	return unix.Fchown(fd, o.uid, o.gid)
}

// mkdirAll makes a directory and its missing parents beneath the tree and opens
// it. What it makes belongs to o.
func (t *dirTree) mkdirAll(rel string, o owner, mode uint32) (int, error) {
	fd, err := t.open(rel, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	up := -1
	if d := path.Dir(rel); d == "." {
		up, err = t.open(".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	} else {
		up, err = t.mkdirAll(d, o, 0o755)
	}
	if err != nil {
		return -1, err
	}
	defer unix.Close(up)
	base := path.Base(rel)
	err = unix.Mkdirat(up, base, mode&0o777)
	made := err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, err
	}
	fd, err = retry(func() (int, error) {
		return unix.Openat(up, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err == nil && made {
		if err := o.give(fd); err != nil {
			unix.Close(fd)
			return -1, err
		}
	}
	return fd, err
}

// makeTree makes a directory that the host named, parents included.
func makeTree(name string, o owner, mode uint32) (*dirTree, error) {
	t, err := openTree(name)
	if err == nil || !errors.Is(err, unix.ENOENT) {
		return t, err
	}
	// The longest part that exists, symlinks followed; the rest is made.
	base, rest := name, ""
	for {
		rest = path.Join(path.Base(base), rest)
		base = path.Dir(base)
		t, err = openTree(base)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.ENOENT) || base == "/" {
			return nil, err
		}
	}
	defer t.close()
	fd, err := t.mkdirAll(rest, o, mode)
	if err != nil {
		return nil, &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	return &dirTree{fd: fd, path: name}, nil
}

func timespec(t time.Time) unix.Timespec { return unix.NsecToTimespec(t.UnixNano()) }
