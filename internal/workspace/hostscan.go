package workspace

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sandboxforge/internal/hostpath"
	"sandboxforge/internal/ignore"
)

// hasExec: whether the host's file system has permission to execute.
const hasExec = runtime.GOOS != "windows"

// hostScan is the host's side and what belongs to it.
type hostScan struct {
	tree    Tree
	exclude []string        // effective, for the guest too
	matcher *ignore.Matcher // of exclude
	skipped []Problem
}

// maxGitignore bounds a .gitignore file, in bytes.
const maxGitignore = 1 << 20

// scanHost walks a directory of the host without reading file contents. What
// a trusted stamp of the ancestor vouches for gets the ancestor's hash.
func scanHost(ctx context.Context, root *hostpath.Dir, r *Request, anc map[string]*Ancestor) (*hostScan, error) {
	w := &hostWalk{ctx: ctx, r: r, anc: anc, tree: Tree{}, excludes: ignore.New(r.Exclude), ignores: ignore.New(nil)}
	if err := w.dir(root, ""); err != nil {
		return nil, err
	}
	list := append(w.patterns, r.Exclude...)
	return &hostScan{tree: w.tree, exclude: list, matcher: ignore.New(list), skipped: w.skipped}, nil
}

type hostWalk struct {
	ctx      context.Context
	r        *Request
	anc      map[string]*Ancestor
	tree     Tree
	skipped  []Problem
	excludes *ignore.Matcher
	ignores  *ignore.Matcher // of the .gitignore files so far
	patterns []string        // the same as a list for the root
	count    int64
}

func (w *hostWalk) excluded(p string, isDir bool) bool {
	if out, decided := w.excludes.Decide(p, isDir); decided {
		return out
	}
	return w.ignores.MatchEntry(p, isDir)
}

func (w *hostWalk) dir(d *hostpath.Dir, rel string) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	names, err := d.Names()
	if err != nil {
		if rel == "" {
			return err
		}
		w.unreadable(rel, err)
		return nil
	}
	slices.Sort(names)
	if w.r.UseGitignore && slices.Contains(names, ".gitignore") {
		if data, err := d.ReadFile(".gitignore", maxGitignore); err == nil {
			scoped := ignore.Scope(rel, ignore.Lines(data))
			w.patterns = append(w.patterns, scoped...)
			w.ignores = w.ignores.With(scoped)
		}
	}
	for _, name := range names {
		if strings.HasPrefix(name, hostpath.TempPrefix) {
			continue
		}
		p := name
		if rel != "" {
			p = rel + "/" + name
		}
		info, err := d.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			w.unreadable(p, err)
			continue
		}
		if w.excluded(p, info.IsDir()) {
			continue
		}
		if len(p) > maxPath {
			w.unreadable(p, errors.New("the path is too long"))
			continue
		}
		w.count++
		if w.count%1000 == 0 {
			w.r.Progress.report("scan", w.count, 0)
		}
		if err := w.entry(d, name, p, info); err != nil {
			return err
		}
	}
	return nil
}

// maxPath bounds relative paths on both sides, in bytes.
const maxPath = 4000

func (w *hostWalk) entry(d *hostpath.Dir, name, p string, info fs.FileInfo) error {
	n := &Node{Mode: uint32(info.Mode().Perm()), Stamp: Stamp{MTime: info.ModTime().UnixNano()}}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		n.Kind, n.Stamp, n.Exec = File, stampOf(info), info.Mode()&0o111 != 0
		a := w.anc[p]
		if !hasExec && a != nil {
			n.Exec = a.Exec
		}
		if a != nil && a.Kind == File && !w.r.FullCheck && a.Host.trusts(n.Stamp) && a.Size == n.Stamp.Size {
			n.Hash, n.Hashed = a.Hash, true
		}
	case mode.IsDir():
		sub, err := d.Dir(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			w.unreadable(p, err)
			return nil
		}
		defer sub.Close()
		n.Kind = Dir
		w.tree[p] = n
		return w.dir(sub, p)
	case mode&fs.ModeSymlink != 0:
		target, err := d.Readlink(name)
		if err != nil {
			w.unreadable(p, err)
			return nil
		}
		n.Kind, n.Target = Symlink, target
	default:
		w.unreadable(p, errors.New("neither a file, a directory nor a symbolic link"))
		return nil
	}
	w.tree[p] = n
	return nil
}

func (w *hostWalk) unreadable(p string, err error) {
	why := err.Error()
	var pe *fs.PathError
	if errors.As(err, &pe) {
		why = pe.Err.Error()
	}
	w.tree[p] = &Node{Kind: Other, Err: why}
	w.skipped = append(w.skipped, Problem{p, why})
}

// hashHost hashes the named files of the tree in parallel. A file that keeps
// changing becomes Other.
func (s *hostScan) hashHost(ctx context.Context, root *hostpath.Dir, paths []string, progress Progress) error {
	if len(paths) == 0 {
		return nil
	}
	var next, done atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex // skipped
	for range min(len(paths), max(2, min(4, runtime.NumCPU()))) {
		wg.Go(func() {
			buf := make([]byte, 256<<10)
			for {
				i := int(next.Add(1)) - 1
				if i >= len(paths) || ctx.Err() != nil {
					return
				}
				if err := hashFile(ctx, root, paths[i], s.tree[paths[i]], buf); err != nil && ctx.Err() == nil {
					mu.Lock()
					s.skipped = append(s.skipped, Problem{paths[i], err.Error()})
					mu.Unlock()
				}
				progress.report("hash", done.Add(1), int64(len(paths)))
			}
		})
	}
	wg.Wait()
	return ctx.Err()
}

// hashFile fills the node from the file as it is now.
func hashFile(ctx context.Context, root *hostpath.Dir, p string, n *Node, buf []byte) error {
	err := errChanging
	for range readAttempts {
		if err = hashOnce(ctx, root, p, n, buf); !errors.Is(err, errChanging) {
			break
		}
	}
	if err != nil {
		*n = Node{Kind: Other, Err: err.Error()}
	}
	return err
}

const readAttempts = 3

var errChanging = errors.New("the file keeps changing while it is read")

func hashOnce(ctx context.Context, root *hostpath.Dir, p string, n *Node, buf []byte) error {
	dir, name, err := root.Parent(p)
	if err != nil {
		return err
	}
	defer dir.Close()
	start := time.Now()
	f, before, err := dir.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyBuffer(h, &ctxReader{ctx, struct{ io.Reader }{f}}, buf); err != nil {
		return err
	}
	after, err := f.Stat()
	if err != nil {
		return err
	}
	if stampOf(before) != stampOf(after) {
		return errChanging
	}
	n.Stamp = stampOf(after)
	n.Mode = uint32(after.Mode().Perm())
	if hasExec {
		n.Exec = after.Mode()&0o111 != 0
	}
	h.Sum(n.Hash[:0])
	n.Hashed = true
	n.Stamp = settled(n.Stamp, start)
	return nil
}

// racyWindow is the age that a change must have before a stamp vouches for the
// content: a second change within the same tick of the file system's clock
// would leave the same stamp.
const racyWindow = 100 * time.Millisecond

// settled takes the trust from a stamp whose file was changed just before it
// was read.
func settled(s Stamp, readAt time.Time) Stamp {
	window := racyWindow
	if s.CTime%int64(time.Second) == 0 {
		window = 3 * time.Second // a clock of whole seconds, or two
	}
	if s.CTime == 0 || readAt.UnixNano()-s.CTime < int64(window) {
		s.CTime = 0
	}
	return s
}

type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *ctxReader) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}

// openLocal opens the directory of a location; a missing one is the error of
// os.IsNotExist.
func openLocal(l hostpath.Location) (*hostpath.Dir, error) {
	root, err := l.Open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.Walk(l.Rel)
}
