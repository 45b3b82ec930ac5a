package workspace

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/hostpath"
	"sandboxforge/internal/ignore"
)

// Request is what both directions of a sync need.
type Request struct {
	Guest  Guest
	Local  hostpath.Location
	Remote string // absolute guest path
	// ManifestDir keeps the manifests of one instance; made if missing.
	ManifestDir string
	Owner       string   // of what is made in the guest; "" is its default user
	Exclude     []string // gitignore syntax
	// UseGitignore adds the .gitignore files of the host's tree to Exclude, as
	// weaker patterns.
	UseGitignore bool
	Trust        hostpath.Trust
	// Strip takes out of the named files what belongs to the side it is on
	// alone, and must never get to the other; found says that there was some.
	// Only the rest is compared and transferred, so a transfer to a side loses
	// that side's part: the caller puts it back. With an error the file is
	// neither transferred nor replaced, and the error is reported.
	Strip map[string]func(content []byte) (rest []byte, found bool, err error)
	// FullCheck compares every file by content.
	FullCheck bool
	Progress  Progress
}

// session is one sync: the lock, both scans and the ancestor.
type session struct {
	*Request
	remote   string
	manifest string
	lock     *flock.Flock
	root     *hostpath.Dir // nil if the local directory is missing
	host     *hostScan
	guest    *guestScan
	anc      map[string]*Ancestor // what the plan works on
	carry    map[string]*Ancestor // excluded now: kept as it was
}

// openSession takes the lock, scans and hashes what a plan needs. The caller
// closes it.
func openSession(ctx context.Context, r *Request, makeLocal bool) (s *session, err error) {
	s = &session{Request: r, anc: map[string]*Ancestor{}, carry: map[string]*Ancestor{}}
	if s.remote, err = cleanRemote(r.Remote); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.ManifestDir, 0o700); err != nil {
		return nil, fault.Wrap(err, fault.Internal, "the directory for sync manifests cannot be made")
	}
	s.manifest = manifestPath(r.ManifestDir, r.Local.Path(), s.remote)
	s.lock = flock.New(strings.TrimSuffix(s.manifest, ".manifest") + ".lock")
	if ok, err := s.lock.TryLockContext(ctx, 20*time.Millisecond); err != nil || !ok {
		return nil, fault.Wrap(err, fault.Cancelled, "another sync of the same directory is still running")
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	s.root, err = openLocal(r.Local)
	if errors.Is(err, fs.ErrNotExist) && !makeLocal {
		err = nil
	}
	if err != nil {
		return s, localFault(err, r.Local.Path())
	}
	all := loadManifest(s.manifest)
	if err = s.scan(ctx, all); err != nil {
		return s, err
	}
	// A path that is excluded now was not removed: it is out of sight.
	for p, a := range all {
		if s.host.matcher.Match(p, a.Kind == Dir) {
			s.carry[p] = a
		} else {
			s.anc[p] = a
		}
	}
	if s.guest.missing {
		// The guest's directory is gone as a whole: nothing that was there
		// says anything about single files.
		s.anc = map[string]*Ancestor{}
	}
	if err = s.strip(ctx); err != nil {
		return s, err
	}
	hostPaths, guestPaths := needHash(s.anc, s.host.tree, s.guest.tree)
	return s, both(
		func() error {
			if s.root == nil {
				return nil
			}
			return s.host.hashHost(ctx, s.root, hostPaths, r.Progress)
		},
		func() error { return s.guest.hashGuest(ctx, r.Guest, s.remote, s.host.exclude, guestPaths) },
	)
}

func (s *session) close() {
	if s.root != nil {
		s.root.Close()
	}
	s.lock.Unlock()
}

func (s *session) scan(ctx context.Context, all map[string]*Ancestor) error {
	host := func() (err error) {
		if s.root == nil {
			s.host = &hostScan{tree: Tree{}, exclude: s.Exclude, matcher: ignore.New(s.Exclude)}
			return nil
		}
		s.host, err = scanHost(ctx, s.root, s.Request, all)
		if err != nil {
			return localFault(err, s.Local.Path())
		}
		return nil
	}
	guest := func(exclude []string) (err error) {
		s.guest, err = scanGuest(ctx, s.Guest, s.remote, exclude, s.FullCheck, all)
		return err
	}
	if !s.UseGitignore {
		return both(host, func() error { return guest(s.Exclude) })
	}
	if err := host(); err != nil {
		return err
	}
	return guest(s.host.exclude)
}

// both runs two functions at once and waits for both.
func both(a, b func() error) error {
	done := make(chan error, 1)
	go func() { done <- a() }()
	errB := b()
	if err := <-done; err != nil {
		return err
	}
	return errB
}

// save writes the manifest: the ancestor as it is now and what was out of
// sight.
func (s *session) save() error {
	m := maps.Clone(s.anc)
	maps.Copy(m, s.carry)
	if err := saveManifest(s.manifest, m); err != nil {
		return fault.Wrap(err, fault.Internal, "the sync cannot remember what it did").
			Because("the disk of the state directory is full or read-only").
			Next("free space in SANDBOXFORGE_HOME and repeat the call")
	}
	return nil
}

// record notes that both sides agree on a path.
func (s *session) record(p string, h, g *Node, put bool) {
	a := &Ancestor{Kind: h.Kind, Exec: h.Exec, Target: h.Target, Put: put}
	if h.Kind == File {
		a.Size, a.Hash, a.Host = h.size(), h.Hash, h.Stamp
		if g != nil {
			a.Guest = g.Stamp
		}
	}
	s.anc[p] = a
}

// adopt records what the plan found equal. What was put there stays ours.
func (s *session) adopt(paths []string) {
	for _, p := range paths {
		put := false
		if a := s.anc[p]; a != nil {
			put = a.Put
		}
		s.record(p, s.host.tree[p], s.guest.tree[p], put)
	}
}

func (s *session) forget(paths []string) {
	for _, p := range paths {
		delete(s.anc, p)
	}
}

func localFault(err error, path string) error {
	var f *fault.Error
	if errors.As(err, &f) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fault.From(err)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.InvalidArgument, "%q does not exist on the host", path).Next("give the path of an existing file or directory")
	}
	return fault.Wrap(err, fault.InvalidArgument, "%q cannot be read on the host", path)
}
