//go:build unix

package workspace

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"sandboxforge/internal/ignore"
)

// dirGuest is a guest whose file system is a directory of the host. It keeps
// the promises of the Guest interface.
type dirGuest struct {
	base string
	// hooks for faults; nil does nothing
	onPut  func(name string) error // before each entry is unpacked
	onTree func()
	mu     sync.Mutex
	calls  map[string]int
	hashed int
}

func newDirGuest(base string) *dirGuest { return &dirGuest{base: base, calls: map[string]int{}} }

func (g *dirGuest) real(p string) string { return filepath.Join(g.base, filepath.FromSlash(p)) }

func (g *dirGuest) count(call string) {
	g.mu.Lock()
	g.calls[call]++
	g.mu.Unlock()
}

func (g *dirGuest) entry(real, rel string, info fs.FileInfo, hash bool) Entry {
	st := info.Sys().(*syscall.Stat_t)
	e := Entry{Path: rel, Mode: uint32(info.Mode().Perm()), Size: info.Size(), MTime: info.ModTime(), Inode: st.Ino}
	e.CTime = time.Unix(0, stampOf(info).CTime)
	switch {
	case info.Mode().IsRegular():
		e.Type = TypeRegular
		if hash {
			data, err := os.ReadFile(real)
			if err != nil {
				e.Error = err.Error()
			}
			sum := sha256.Sum256(data)
			e.SHA256 = sum[:]
			g.mu.Lock()
			g.hashed++
			g.mu.Unlock()
		}
	case info.IsDir():
		e.Type = TypeDir
	case info.Mode()&fs.ModeSymlink != 0:
		e.Type = TypeSymlink
		e.LinkTarget, _ = os.Readlink(real)
	}
	return e
}

func (g *dirGuest) Stat(ctx context.Context, p string, hash bool) (Entry, error) {
	g.count("stat")
	info, err := os.Lstat(g.real(p))
	if err != nil {
		return Entry{}, ErrNotFound
	}
	return g.entry(g.real(p), p, info, hash), nil
}

func (g *dirGuest) Tree(ctx context.Context, r TreeRequest) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		g.count("tree")
		if g.onTree != nil {
			g.onTree()
		}
		root := g.real(r.Root)
		m := ignore.New(r.Exclude)
		unless := map[string]Entry{}
		for _, e := range r.HashUnless {
			unless[e.Path] = e
		}
		err := filepath.WalkDir(root, func(real string, d fs.DirEntry, err error) error {
			rel, _ := filepath.Rel(root, real)
			if err != nil {
				if rel == "." {
					return ErrNotFound
				}
				return err
			}
			if rel == "." {
				return nil
			}
			if m.MatchEntry(rel, d.IsDir()) {
				if d.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			info, err := d.Info()
			if err != nil {
				return nil
			}
			e := g.entry(real, rel, info, false)
			if u, ok := unless[rel]; r.Hash && e.Type == TypeRegular && !(ok && u.Size == e.Size && u.MTime.Equal(e.MTime) && u.CTime.Equal(e.CTime) && u.Inode == e.Inode) {
				e = g.entry(real, rel, info, true)
			}
			if !yield(e, nil) {
				return fs.SkipAll
			}
			return ctx.Err()
		})
		if err != nil {
			yield(Entry{}, err)
		}
	}
}

func (g *dirGuest) Glob(ctx context.Context, base string, patterns []string, most int) ([]GlobMatch, error) {
	g.count("glob")
	var out []GlobMatch
	for _, p := range patterns {
		full := p
		if !path.IsAbs(p) {
			full = path.Join(base, p)
		}
		m := GlobMatch{Pattern: p}
		found, err := filepath.Glob(g.real(full))
		if err != nil {
			m.Error = err.Error()
		}
		for _, f := range found {
			if info, err := os.Lstat(f); err == nil {
				m.Entries = append(m.Entries, g.entry(f, "/"+strings.TrimPrefix(strings.TrimPrefix(f, g.base), "/"), info, false))
			}
		}
		out = append(out, m)
	}
	return out, nil
}

func (g *dirGuest) PutTar(ctx context.Context, p PutTar, r io.Reader) (PutResult, error) {
	g.count("put")
	root := g.real(p.Root)
	var res PutResult
	if err := os.MkdirAll(root, 0o755); err != nil {
		return res, err
	}
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return res, nil
		}
		if err != nil {
			return res, err
		}
		name := strings.TrimSuffix(h.Name, "/")
		if g.onPut != nil {
			if err := g.onPut(name); err != nil {
				return res, err
			}
		}
		to := filepath.Join(root, filepath.FromSlash(name))
		old, statErr := os.Lstat(to)
		if h.Typeflag == tar.TypeDir {
			if statErr == nil && !old.IsDir() {
				return res, errors.New(name + " is in the way")
			}
			if err := os.MkdirAll(to, 0o755); err != nil {
				return res, err
			}
		} else {
			if statErr == nil && p.KeepExisting {
				res.Skipped = append(res.Skipped, name)
				continue
			}
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				return res, err
			}
			temp := to + ".part"
			if h.Typeflag == tar.TypeSymlink {
				if err := os.Symlink(h.Linkname, temp); err != nil {
					return res, err
				}
			} else {
				f, err := os.Create(temp)
				if err != nil {
					return res, err
				}
				_, err = io.Copy(f, tr)
				f.Chmod(h.FileInfo().Mode().Perm())
				f.Close()
				if err != nil {
					os.Remove(temp)
					return res, err
				}
				os.Chtimes(temp, h.ModTime, h.ModTime)
			}
			if err := os.Rename(temp, to); err != nil {
				os.Remove(temp)
				return res, err
			}
		}
		if info, err := os.Lstat(to); err == nil {
			res.Entries = append(res.Entries, g.entry(to, name, info, false))
		}
	}
}

func (g *dirGuest) GetTar(ctx context.Context, get GetTar) (io.ReadCloser, error) {
	g.count("get")
	r, w := io.Pipe()
	go func() {
		tw := tar.NewWriter(w)
		for _, p := range get.Paths {
			real := filepath.Join(g.real(get.Root), p)
			info, err := os.Lstat(real)
			if err != nil {
				continue
			}
			link, _ := os.Readlink(real)
			h, _ := tar.FileInfoHeader(info, link)
			h.Name = p
			if err := tw.WriteHeader(h); err != nil {
				w.CloseWithError(err)
				return
			}
			if info.Mode().IsRegular() {
				data, _ := os.ReadFile(real)
				if _, err := tw.Write(data); err != nil {
					w.CloseWithError(err)
					return
				}
			}
		}
		w.CloseWithError(tw.Close())
	}()
	return r, nil
}

func (g *dirGuest) Remove(ctx context.Context, root string, paths []string, recursive bool) (removed, failed []string, err error) {
	g.count("remove")
	for _, p := range paths {
		real := filepath.Join(g.real(root), p)
		f := os.Remove
		if recursive {
			f = os.RemoveAll
		}
		if err := f(real); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, p+": "+err.Error())
			continue
		}
		removed = append(removed, p)
	}
	return removed, failed, nil
}

// readTree is what is below a directory, for comparisons: contents of files
// with their x bit, targets of links, directories as "dir".
func readTree(dir string) map[string]string {
	m := map[string]string{}
	filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(dir, p)
		if err != nil || rel == "." {
			return nil
		}
		info, _ := d.Info()
		switch {
		case d.IsDir():
			m[rel] = "dir"
		case info.Mode()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(p)
			m[rel] = "-> " + to
		case info.Mode().IsRegular():
			data, _ := os.ReadFile(p)
			x := ""
			if info.Mode()&0o111 != 0 {
				x = "x:"
			}
			m[rel] = x + string(data)
		default:
			m[rel] = "special"
		}
		return nil
	})
	return m
}

func without(m map[string]string, names ...string) map[string]string {
	for _, n := range names {
		for p := range m {
			if p == n || strings.HasPrefix(p, n+"/") {
				delete(m, p)
			}
		}
	}
	return m
}

func sortedKeys(m map[string]string) []string {
	var l []string
	for k := range m {
		l = append(l, k)
	}
	slices.Sort(l)
	return l
}
