package workspace

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/hostpath"
)

// CollectRequest describes a collection of artifacts.
type CollectRequest struct {
	Guest       Guest
	RemotePaths []string // absolute paths or globs, or relative to Base
	Base        string   // "" if relative ones are an error
	Local       hostpath.Location
	// MaxTotalBytes bounds what is collected; 0 is DefaultMaxArtifacts. A file
	// that would pass it is reported and left out.
	MaxTotalBytes int64
	Trust         hostpath.Trust
	Now           func() time.Time // of the manifest; nil is time.Now
	Progress      Progress
}

// DefaultMaxArtifacts is the bound where a caller gives none, in bytes.
const DefaultMaxArtifacts = 4 << 30

// maxArtifacts bounds the number of files of one collection.
const maxArtifacts = 100_000

// CollectionManifest is the name of the file that lists a collection.
const CollectionManifest = "sandboxforge-artifacts.json"

// Artifact is one collected file.
type Artifact struct {
	RemotePath string `json:"remote_path"`
	LocalPath  string `json:"local_path"`
	Bytes      int64  `json:"bytes"`
	SHA256     string `json:"sha256"`
	Mode       string `json:"mode"` // octal, as in the guest
}

// ArtifactFailure is a path or pattern that gave nothing.
type ArtifactFailure struct {
	RemotePath string `json:"remote_path"`
	Reason     string `json:"reason"`
}

// CollectResult is the outcome of a collection.
type CollectResult struct {
	LocalDir     string            `json:"local_dir"` // where this collection lies
	Artifacts    []Artifact        `json:"artifacts"`
	Failed       []ArtifactFailure `json:"failed"`
	ManifestPath string            `json:"manifest_path"`
}

// Collect fetches files out of the guest. It never replaces anything: if a
// name is taken in the local directory, or an earlier collection lies there,
// this one goes into a subdirectory collection-2, -3 and so on. A file keeps
// its base name, a directory its name and all below it; two matches of one
// name are told apart by a number. A path that cannot be had is in Failed and
// costs the others nothing.
func Collect(ctx context.Context, r CollectRequest) (*CollectResult, error) {
	if len(r.RemotePaths) == 0 {
		return nil, fault.New(fault.InvalidArgument, "remote_paths is empty").Next("name at least one path or glob in the guest")
	}
	if r.MaxTotalBytes < 0 {
		return nil, fault.New(fault.InvalidArgument, "max_total_bytes is negative")
	}
	if r.MaxTotalBytes == 0 {
		r.MaxTotalBytes = DefaultMaxArtifacts
	}
	if r.Now == nil {
		r.Now = time.Now
	}
	c := &collector{r: &r, res: &CollectResult{Artifacts: []Artifact{}, Failed: []ArtifactFailure{}},
		tree: Tree{}, names: map[string]string{}, taken: map[string]bool{hostpath.Fold(CollectionManifest): true}}
	if err := c.find(ctx); err != nil {
		return nil, err
	}
	if err := c.fetch(ctx); err != nil {
		return nil, err
	}
	return c.res, nil
}

type collector struct {
	r     *CollectRequest
	res   *CollectResult
	tree  Tree              // by absolute path without its leading slash
	names map[string]string // the same paths, to local relative ones
	taken map[string]bool   // folded local names at the top
	total int64
}

func (c *collector) fail(p, format string, args ...any) {
	c.res.Failed = append(c.res.Failed, ArtifactFailure{clip(p), fmt.Sprintf(format, args...)})
}

// find expands the patterns.
func (c *collector) find(ctx context.Context) error {
	var patterns []string
	for _, p := range c.r.RemotePaths {
		switch {
		case p == "" || strings.ContainsRune(p, 0) || len(p) > maxPath:
			c.fail(p, "not a usable path")
		case !path.IsAbs(p) && c.r.Base == "":
			c.fail(p, "the path is not absolute")
		default:
			patterns = append(patterns, p)
		}
	}
	if len(patterns) == 0 {
		return nil
	}
	matches, err := c.r.Guest.Glob(ctx, c.r.Base, patterns, maxArtifacts)
	if err != nil {
		return guestFault(err, "the paths cannot be looked up in the guest")
	}
	for _, m := range matches {
		if m.Error != "" {
			c.fail(m.Pattern, "%s", clip(m.Error))
		} else if len(m.Entries) == 0 {
			c.fail(m.Pattern, "nothing matches in the guest")
		}
		for _, e := range m.Entries {
			if err := c.match(ctx, e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *collector) match(ctx context.Context, e Entry) error {
	p := path.Clean(e.Path)
	if !path.IsAbs(p) || p == "/" || badGuestPath(p[1:]) != "" {
		c.fail(e.Path, "not a usable path")
		return nil
	}
	if _, twice := c.names[p[1:]]; twice {
		return nil // two patterns, one file
	}
	switch {
	case e.Type == TypeSymlink:
		c.fail(p, "a symbolic link to %s, which is not followed", clip(e.LinkTarget))
	case e.Type == TypeRegular:
		c.add(p, c.free(path.Base(p)), e)
	case e.Type == TypeDir:
		scan, err := scanGuest(ctx, c.r.Guest, p, nil, true, nil)
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			c.fail(p, "%s", describeError(err))
			return nil
		}
		top := c.free(path.Base(p))
		empty := true
		for _, q := range unionPaths(nil, scan.tree) {
			n := scan.tree[q]
			full := p + "/" + q
			if _, twice := c.names[full[1:]]; twice {
				continue
			}
			switch n.Kind {
			case File:
				c.addNode(full, top+"/"+q, n)
				empty = false
			case Symlink:
				c.fail(full, "a symbolic link to %s, which is not followed", clip(n.Target))
			case Other:
				c.fail(full, "%s", n.Err)
			}
		}
		for _, b := range scan.bad {
			c.fail(p+"/"+b.Path, "%s", b.Reason)
		}
		if empty {
			c.fail(p, "the directory has no files")
		}
	default:
		c.fail(p, "neither a regular file nor a directory")
	}
	return nil
}

// free finds a name at the top that no other match has.
func (c *collector) free(name string) string {
	ext := path.Ext(name)
	base := strings.TrimSuffix(name, ext)
	if base == "" {
		base, ext = name, ""
	}
	for i := 1; ; i++ {
		try := name
		if i > 1 {
			try = fmt.Sprintf("%s-%d%s", base, i, ext)
		}
		if key := hostpath.Fold(try); !c.taken[key] {
			c.taken[key] = true
			return try
		}
	}
}

func (c *collector) add(p, local string, e Entry) { c.addNode(p, local, guestNode(e, true, nil)) }

func (c *collector) addNode(p, local string, n *Node) {
	switch {
	case n.Kind != File:
		c.fail(p, "%s", n.Err)
	case len(c.names) >= maxArtifacts:
		c.fail(p, "more than %d files", maxArtifacts)
	case n.Stamp.Size > c.r.MaxTotalBytes-c.total:
		c.fail(p, "its %d bytes would pass max_total_bytes (%d)", n.Stamp.Size, c.r.MaxTotalBytes)
	default:
		c.total += n.Stamp.Size
		c.names[p[1:]] = local
		c.tree[p[1:]] = n
	}
}

// fetch chooses the directory, writes the files and the manifest.
func (c *collector) fetch(ctx context.Context) error {
	root, err := c.r.Local.Open()
	if err != nil {
		return localFault(err, c.r.Local.Path())
	}
	defer root.Close()
	if why, refused := c.r.Trust.Check(c.r.Local.Rel); refused {
		return fault.New(fault.PathNotAllowed, "artifacts are not put into %q: %s", c.r.Local.Path(), why).Next("choose another local_dest")
	}
	dest, err := c.place(root)
	if err != nil {
		return err
	}
	c.res.LocalDir = dest.Path()
	var refused, skipped []Problem
	w := &hostWriter{root: root, base: dest.Rel, trust: c.r.Trust, fresh: true, refused: &refused, skipped: &skipped, sums: map[string]string{}}
	c.dropRefused(w)
	if err := w.fetch(ctx, c.r.Guest, "/", c.names, c.tree, c.r.Progress); err != nil {
		return err
	}
	for _, p := range skipped {
		c.fail("/"+p.Path, "%s", p.Reason)
	}
	for p, sum := range w.sums {
		n := c.tree[p]
		c.res.Artifacts = append(c.res.Artifacts, Artifact{RemotePath: "/" + p, LocalPath: filepath.Join(dest.Path(), filepath.FromSlash(c.names[p])),
			Bytes: n.Stamp.Size, SHA256: sum, Mode: fmt.Sprintf("%04o", n.Mode)})
	}
	slices.SortFunc(c.res.Artifacts, func(a, b Artifact) int { return comparePaths(a.RemotePath, b.RemotePath) })
	return c.manifest(root, dest)
}

// dropRefused takes out what the host does not take from a guest.
func (c *collector) dropRefused(w *hostWriter) {
	names := map[string][]string{}
	for _, local := range c.names {
		for p := local; p != "."; p = path.Dir(p) {
			names[path.Dir(p)] = append(names[path.Dir(p)], path.Base(p))
		}
	}
	bare := map[string]bool{}
	for d, list := range names {
		bare[d] = hostpath.LooksBare(list)
	}
	for p, local := range c.names {
		why := w.refuse(local, c.tree[p])
		for d := path.Dir(local); why == ""; d = path.Dir(d) {
			if bare[d] {
				why = hostpath.BareRepositoryReason
			}
			if d == "." {
				break
			}
		}
		if why != "" {
			c.fail("/"+p, "%s", why)
			delete(c.names, p)
		}
	}
	slices.SortFunc(c.res.Failed, func(a, b ArtifactFailure) int { return strings.Compare(a.RemotePath, b.RemotePath) })
}

// place finds the directory of this collection: the local directory itself, or
// a new one in it if anything there is in the way.
func (c *collector) place(root *hostpath.Dir) (hostpath.Location, error) {
	dir, err := root.MakeAll(c.r.Local.Rel)
	if err != nil {
		return c.r.Local, localFault(err, c.r.Local.Path())
	}
	defer dir.Close()
	there, err := dir.Names()
	if err != nil {
		return c.r.Local, localFault(err, c.r.Local.Path())
	}
	clash := false
	for _, name := range there {
		clash = clash || c.taken[hostpath.Fold(name)] // the manifest's name is among them
	}
	// HEAD beside objects could make a repository of a directory that was none.
	for _, local := range c.names {
		top, _, _ := strings.Cut(local, "/")
		there = append(there, top)
	}
	if !clash && !hostpath.LooksBare(there) {
		return c.r.Local, nil
	}
	for i := 2; i < 100_000; i++ {
		name := fmt.Sprintf("collection-%d", i)
		err := dir.Mkdir(name, 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return c.r.Local, localFault(err, filepath.Join(c.r.Local.Path(), name))
		}
		return c.r.Local.Join(name), nil
	}
	return c.r.Local, fault.New(fault.InvalidArgument, "%q has too many collections", c.r.Local.Path()).Next("choose another local_dest")
}

func (c *collector) manifest(root *hostpath.Dir, dest hostpath.Location) error {
	c.res.ManifestPath = filepath.Join(dest.Path(), CollectionManifest)
	data, err := json.MarshalIndent(struct {
		CollectedAt string `json:"collected_at"`
		*CollectResult
	}{c.r.Now().UTC().Format(time.RFC3339), c.res}, "", "  ")
	if err != nil {
		return err
	}
	dir, err := root.Walk(dest.Rel)
	if err == nil {
		defer dir.Close()
		var t *hostpath.Temp
		if t, err = dir.Create(0o644); err == nil {
			defer t.Abort()
			if _, err = t.Write(append(data, '\n')); err == nil {
				err = t.CommitNew(CollectionManifest, time.Time{})
			}
		}
	}
	if err != nil {
		return localFault(err, c.res.ManifestPath)
	}
	return nil
}

func hexSum(sum [32]byte) string { return hex.EncodeToString(sum[:]) }
