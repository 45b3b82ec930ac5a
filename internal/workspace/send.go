package workspace

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"sandboxforge/internal/hostpath"
)

// smallFile is the size up to which a file is read whole before its header is
// written, so that a change in between is seen and the file read again.
const smallFile = 1 << 20

// errRestart: a large file changed while it was being sent. The stream was
// broken off before its last bytes, so that the guest did not take it.
var errRestart = errors.New("a file changed while it was being sent")

// sender writes files of the host into tar streams and notes what it sent.
type sender struct {
	ctx      context.Context
	root     *hostpath.Dir
	tree     Tree
	guest    Guest
	remote   string
	rename   map[string]string // names in the stream that differ from the path
	owner    string
	progress Progress
	total    int64

	sent    map[string]*Node // complete in a stream, as they were read
	order   []string         // keys of sent
	failed  []Problem
	changed string // the file of errRestart
	bytes   int64  // of all streams
	content int64

	parents dirCache
	buf     []byte
}

func newSender(ctx context.Context, root *hostpath.Dir, tree Tree, g Guest, remote, owner string, progress Progress) *sender {
	return &sender{ctx: ctx, root: root, tree: tree, guest: g, remote: remote, owner: owner, progress: progress,
		sent: map[string]*Node{}, parents: dirCache{root: root}}
}

// put sends the paths in one stream. Entries of the result have names relative
// to the remote root.
func (s *sender) put(paths []string, keepExisting bool) (PutResult, error) {
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := s.stream(w, paths)
		w.CloseWithError(err)
		done <- err
	}()
	res, err := s.guest.PutTar(s.ctx, PutTar{Root: s.remote, Owner: s.owner, KeepExisting: keepExisting}, r)
	r.CloseWithError(errors.New("the guest stopped reading"))
	streamErr := <-done
	s.parents.close()
	switch {
	case errors.Is(streamErr, errRestart):
		return res, errRestart
	case err != nil:
		return res, guestFault(err, "files cannot be sent to %q in the guest", s.remote)
	}
	return res, streamErr
}

type counter struct {
	w io.Writer
	n *int64
}

func (c counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	*c.n += int64(n)
	return n, err
}

func (s *sender) stream(w io.Writer, paths []string) error {
	buffered := bufio.NewWriterSize(counter{w, &s.bytes}, 512<<10)
	tw := tar.NewWriter(buffered)
	for _, p := range paths {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		if err := s.one(tw, p); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return buffered.Flush()
}

// one writes one path. Its error ends the stream; what only concerns the file
// goes to failed.
func (s *sender) one(tw *tar.Writer, p string) error {
	n := s.tree[p]
	name := p
	if to, ok := s.rename[p]; ok {
		name = to
	}
	switch n.Kind {
	case Dir:
		s.note(p, n)
		return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: int64(n.Mode | 0o700), ModTime: unixNano(n.Stamp.MTime)})
	case Symlink:
		s.note(p, n)
		return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: n.Target, Mode: 0o777, ModTime: unixNano(n.Stamp.MTime)})
	}
	if n.Content != nil {
		s.note(p, n)
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: n.size(), Mode: int64(n.Mode), ModTime: unixNano(n.Stamp.MTime)}); err != nil {
			return err
		}
		_, err := tw.Write(n.Content)
		return err
	}
	if n.Stamp.Size <= smallFile {
		return s.small(tw, p, name, n)
	}
	return s.large(tw, p, name, n)
}

func (s *sender) note(p string, n *Node) {
	if s.sent[p] == nil {
		s.order = append(s.order, p)
	}
	s.sent[p] = n
}

func (s *sender) fail(p string, err error) {
	why := err.Error()
	var pe *fs.PathError
	if errors.As(err, &pe) {
		why = pe.Err.Error()
	}
	s.failed = append(s.failed, Problem{p, why})
}

func (s *sender) header(name string, info fs.FileInfo) *tar.Header {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: info.Size(), Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()}
	if !hasExec {
		h.Mode = 0o644
	}
	return h
}

func (s *sender) read(p string, info fs.FileInfo, hash [sha256.Size]byte, start time.Time) *Node {
	n := &Node{Kind: File, Exec: s.tree[p].Exec, Mode: uint32(info.Mode().Perm()), Stamp: settled(stampOf(info), start), Hash: hash, Hashed: true}
	if hasExec {
		n.Exec = info.Mode()&0o111 != 0
	}
	return n
}

func (s *sender) small(tw *tar.Writer, p, name string, n *Node) error {
	err := errChanging
	var info fs.FileInfo
	var start time.Time
	for range readAttempts {
		start = time.Now()
		if info, err = s.slurp(p); !errors.Is(err, errChanging) {
			break
		}
	}
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("it vanished while the sync ran")
		}
		s.fail(p, err)
		return nil
	}
	h := s.header(name, info)
	if !hasExec && n.Exec {
		h.Mode |= 0o111
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	if _, err := tw.Write(s.buf); err != nil {
		return err
	}
	s.progressed(int64(len(s.buf)))
	s.note(p, s.read(p, info, sha256.Sum256(s.buf), start))
	return nil
}

// slurp reads a whole file into s.buf and fails with errChanging if it is not
// the same before and after.
func (s *sender) slurp(p string) (fs.FileInfo, error) {
	dir, name, err := s.parents.parent(p)
	if err != nil {
		return nil, err
	}
	f, before, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := before.Size()
	if size > 4*smallFile {
		return nil, errChanging
	}
	if int64(cap(s.buf)) < size+1 {
		s.buf = make([]byte, max(size+1, 64<<10))
	}
	s.buf = s.buf[:size+1]
	n, err := io.ReadFull(f, s.buf)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	after, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if int64(n) != size || stampOf(before) != stampOf(after) {
		return nil, errChanging
	}
	s.buf = s.buf[:size]
	return after, nil
}

// large streams a file and holds its last bytes back until it is known that
// the file did not change: a guest never takes a torn file.
func (s *sender) large(tw *tar.Writer, p, name string, n *Node) error {
	start := time.Now()
	dir, base, err := s.parents.parent(p)
	if err != nil {
		s.fail(p, err)
		return nil
	}
	f, before, err := dir.Open(base)
	if err != nil {
		s.fail(p, err)
		return nil
	}
	defer f.Close()
	h := s.header(name, before)
	if !hasExec && n.Exec {
		h.Mode |= 0o111
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	restart := func(err error) error {
		s.changed = p
		return fmt.Errorf("%w: %s: %v", errRestart, p, err)
	}
	sum := sha256.New()
	if cap(s.buf) < smallFile {
		s.buf = make([]byte, smallFile)
	}
	buf := s.buf[:smallFile]
	for left := before.Size(); left > 0; {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		part := buf[:min(left, int64(len(buf)))]
		if _, err := io.ReadFull(f, part); err != nil {
			return restart(err)
		}
		sum.Write(part)
		left -= int64(len(part))
		if left == 0 {
			after, err := f.Stat()
			if err != nil || stampOf(after) != stampOf(before) {
				return restart(errChanging)
			}
		}
		if _, err := tw.Write(part); err != nil {
			return err
		}
		s.progressed(int64(len(part)))
	}
	s.note(p, s.read(p, before, [sha256.Size]byte(sum.Sum(nil)), start))
	return nil
}

func (s *sender) progressed(n int64) {
	s.content += n
	s.progress.report("send", s.content, s.total)
}

// dirCache keeps the directory of the last path open: paths come in order.
type dirCache struct {
	root *hostpath.Dir
	rel  string
	dir  *hostpath.Dir
	make bool // missing directories are made
}

// parent returns the open parent directory, which stays the cache's.
func (c *dirCache) parent(p string) (*hostpath.Dir, string, error) {
	rel, name := ".", p
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		rel, name = p[:i], p[i+1:]
	}
	if c.dir != nil && c.rel == rel {
		return c.dir, name, nil
	}
	c.close()
	var err error
	if c.make {
		c.dir, err = c.root.MakeAll(rel)
	} else {
		c.dir, err = c.root.Walk(rel)
	}
	if err != nil {
		c.dir = nil
		return nil, "", err
	}
	c.rel = rel
	return c.dir, name, nil
}

func (c *dirCache) close() {
	if c.dir != nil {
		c.dir.Close()
		c.dir = nil
	}
}
