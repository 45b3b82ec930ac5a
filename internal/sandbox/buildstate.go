package sandbox

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"sandboxforge/internal/buildcache"
	"sandboxforge/internal/config"
	"sandboxforge/internal/docker"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
)

const (
	maxDockerfile  = 1 << 20
	gitStateWithin = time.Minute
	// maxKnownEntries bounds the entries that a second look at a context names
	// as known to the guest.
	maxKnownEntries = 50_000
)

// buildTree is a build context in the guest as it is at one moment.
type buildTree struct {
	context    string // real paths in the guest
	dockerfile string // "" if there is none
	usual      bool   // the Dockerfile is the context's own
	ignore     []byte
	file       buildcache.Dockerfile
	state      buildcache.State
	unreadable []string
	entries    []guest.Entry
}

// buildTree looks at a context. A context that is no directory in the
// workspace is INVALID_ARGUMENT; so is a missing Dockerfile if one is needed.
func (d *dockerCall) buildTree(ctx context.Context, contextPath, dockerfile string, needed bool) (*buildTree, error) {
	contextPath = orText(contextPath, ".")
	for _, p := range []struct{ name, path string }{{"context_path", contextPath}, {"dockerfile", dockerfile}} {
		if err := checkGuestPath(p.name, p.path); err != nil {
			return nil, err
		}
	}
	dir := d.workspacePath(contextPath)
	kind, err := d.kindAt(ctx, dir)
	if err != nil {
		return nil, err
	}
	file := ""
	if kind != guest.TypeUnknown { // else resolve says what is wrong
		if file, err = d.findDockerfile(ctx, dir, dockerfile, needed); err != nil && kind == guest.TypeDir {
			return nil, err
		}
	}
	t := &buildTree{}
	if t.context, t.dockerfile, err = d.resolveBuild(ctx, contextPath, file); err != nil {
		return nil, err
	}
	if kind == guest.TypeSymlink {
		if kind, err = d.kindAt(ctx, t.context); err != nil {
			return nil, err
		}
	}
	if kind != guest.TypeDir {
		return nil, fault.New(fault.InvalidArgument, "context_path is %s, which is a file in the VM; a build context is a directory", t.context).
			With("instance_id", d.lease.InstanceID).
			Next("pass the directory, and the file as dockerfile if it is one")
	}
	if t.dockerfile != "" {
		if kind, err = d.kindAt(ctx, t.dockerfile); err != nil {
			return nil, err
		}
		if kind != guest.TypeRegular {
			return nil, fault.New(fault.InvalidArgument, "dockerfile is %s, which is no file in the VM", t.dockerfile).With("instance_id", d.lease.InstanceID)
		}
	} else if needed {
		_, err := d.findDockerfile(ctx, t.context, dockerfile, true)
		return nil, err
	}
	t.usual = t.dockerfile == path.Join(t.context, "Dockerfile")
	return t, d.scanTree(ctx, t, nil)
}

// resolveBuild is resolve for both paths of a build at once, since it starts a
// program in the guest; an error names the one that is wrong.
func (d *dockerCall) resolveBuild(ctx context.Context, contextPath, dockerfile string) (realContext, realFile string, err error) {
	if dockerfile == "" {
		real, err := d.resolve(ctx, "context_path", contextPath)
		if err != nil {
			return "", "", err
		}
		return real[0], "", nil
	}
	// It is a path in the guest already, and must not be taken for one of the
	// host's that looks the same.
	dockerfile = strings.TrimPrefix(dockerfile, guestPath(d.lease, "")+"/")
	real, err := d.resolve(ctx, "context_path", contextPath, dockerfile)
	if err == nil {
		return real[0], real[1], nil
	}
	if !fault.Is(err, fault.InvalidArgument) {
		return "", "", err
	}
	if _, err := d.resolve(ctx, "context_path", contextPath); err != nil {
		return "", "", err
	}
	_, err = d.resolve(ctx, "dockerfile", dockerfile)
	if err == nil {
		err = fault.New(fault.InvalidArgument, "context_path or dockerfile changed while it was looked at").Next("repeat the call")
	}
	return "", "", err
}

// kindAt is what a path in the guest is, TypeUnknown if there is nothing.
func (d *dockerCall) kindAt(ctx context.Context, p string) (guest.FileType, error) {
	e, err := d.guest.Stat(ctx, p, false)
	switch {
	case errors.Is(err, guest.ErrNotFound), errors.Is(err, guest.ErrFailedPrecondition), errors.Is(err, guest.ErrInvalid):
		return guest.TypeUnknown, nil
	case err != nil:
		return guest.TypeUnknown, d.s.guestFault(ctx, d.lease, "looking at "+p, err)
	}
	return e.Type, nil
}

// findDockerfile is the first path at which there is what a caller may mean,
// "" if there is none and none is needed.
func (d *dockerCall) findDockerfile(ctx context.Context, contextDir, name string, needed bool) (string, error) {
	given := orText(name, "Dockerfile")
	places := []string{path.Join(contextDir, given), path.Join(guestPath(d.lease, ""), given)}
	if p := d.workspacePath(given); path.IsAbs(given) || p != guestPath(d.lease, given) {
		places = []string{p}
	}
	if name == "" {
		places = places[:1]
	}
	for _, p := range places {
		kind, err := d.kindAt(ctx, p)
		if err != nil || kind != guest.TypeUnknown {
			return p, err
		}
	}
	if !needed {
		return "", nil
	}
	return "", fault.New(fault.InvalidArgument, "there is no Dockerfile at %s in the VM", strings.Join(places, " or ")).
		With("instance_id", d.lease.InstanceID).
		Next("pass dockerfile, relative to context_path or to the workspace").
		Next("if the file is new on the host, call sync_workspace_to_instance first")
}

// scanTree reads what a build would read. known are entries of an earlier look,
// whose content need not be read again where they are unchanged.
func (d *dockerCall) scanTree(ctx context.Context, t *buildTree, known []guest.Entry) error {
	t.state = buildcache.State{Time: d.s.now().UTC()}
	t.file = buildcache.Dockerfile{}
	if t.dockerfile != "" {
		text, err := d.guest.ReadFile(ctx, t.dockerfile, maxDockerfile)
		switch {
		case errors.Is(err, guest.ErrTooLarge):
			return fault.New(fault.InvalidArgument, "the Dockerfile %s is larger than %d bytes", t.dockerfile, maxDockerfile)
		case err != nil:
			return d.s.guestFault(ctx, d.lease, "reading the Dockerfile", err)
		}
		t.file = buildcache.ParseDockerfile(text)
		t.state.Dockerfile = t.file.Hash
	}
	ign, err := d.dockerIgnore(ctx, t)
	if err != nil {
		return err
	}
	if err := d.walkContext(ctx, t, ign, known); err != nil {
		return err
	}
	d.gitState(ctx, t)
	return nil
}

// dockerIgnore reads what the build leaves out.
func (d *dockerCall) dockerIgnore(ctx context.Context, t *buildTree) (*buildcache.Ignore, error) {
	places := []string{path.Join(t.context, ".dockerignore")}
	if own := t.dockerfile + ".dockerignore"; t.dockerfile != "" && own != places[0] && d.config.Build.EnableBuildkit {
		places = []string{own, places[0]} // only BuildKit knows the Dockerfile's own
	}
	t.ignore = nil
	for _, p := range places {
		text, err := d.guest.ReadFile(ctx, p, maxDockerfile)
		switch {
		case errors.Is(err, guest.ErrNotFound):
			continue
		case errors.Is(err, guest.ErrTooLarge), errors.Is(err, guest.ErrFailedPrecondition), errors.Is(err, guest.ErrInvalid):
			return nil, fault.Wrap(err, fault.InvalidArgument, "%s cannot be read", p).With("instance_id", d.lease.InstanceID)
		case err != nil:
			return nil, d.s.guestFault(ctx, d.lease, "reading "+p, err)
		}
		t.ignore = append([]byte(p[len(path.Dir(p)):]+"\x00"), text...)
		ign, err := buildcache.ParseIgnore(text)
		if err != nil {
			return nil, fault.Wrap(err, fault.InvalidArgument, "%s has a pattern that Docker does not accept", p).
				With("instance_id", d.lease.InstanceID).Next("correct the file on the host and sync it, or edit it in the VM")
		}
		return ign, nil
	}
	return buildcache.ParseIgnore(nil)
}

// walkContext hashes the context in the guest.
func (d *dockerCall) walkContext(ctx context.Context, t *buildTree, ign *buildcache.Ignore, known []guest.Entry) error {
	hashes := map[string][]byte{}
	if len(known) > maxKnownEntries {
		known = nil
	}
	var unless []guest.Entry
	for _, e := range known {
		if e.SHA256 != nil {
			hashes[e.Path] = e.SHA256
			unless = append(unless, e)
		}
	}
	t.entries = nil
	var list []buildcache.Entry
	for e, err := range d.guest.Tree(ctx, guest.TreeRequest{Root: t.context, Exclude: ign.Certain(), Hash: true, HashUnless: unless}) {
		switch {
		case errors.Is(err, guest.ErrTruncated):
			return fault.Wrap(err, fault.InvalidArgument, "the build context %s has too many files", t.context).
				With("instance_id", d.lease.InstanceID).
				Next("leave out in .dockerignore what the build does not need, by plain names such as node_modules")
		case err != nil:
			return d.s.guestFault(ctx, d.lease, "reading the build context", err)
		}
		if e.Type == guest.TypeRegular && e.SHA256 == nil && e.Error == "" {
			if e.SHA256 = hashes[e.Path]; e.SHA256 == nil {
				e.Error = "the guest gave no hash"
			}
		}
		t.entries = append(t.entries, e)
		list = append(list, buildcache.Entry{
			Path: e.Path, Kind: entryKind(e.Type), Mode: e.Mode, SHA256: hex.EncodeToString(e.SHA256), Target: e.LinkTarget, Error: e.Error,
		})
		if len(list)%1000 == 0 {
			report(ctx, Progress{Stage: "context", Message: counted(int64(len(list)), 0, "files")})
		}
	}
	c, err := buildcache.Scan(ctx, ign, list, d.config.Build.StalenessDetection.CheckDependencies)
	if err != nil {
		return fault.Wrap(err, fault.InvalidArgument, ".dockerignore cannot be applied to the build context")
	}
	t.state.Content, t.state.Dependencies, t.unreadable = c.Hash, c.Dependencies, c.Unreadable
	return nil
}

func entryKind(t guest.FileType) buildcache.Kind {
	switch t {
	case guest.TypeRegular:
		return buildcache.File
	case guest.TypeDir:
		return buildcache.Dir
	case guest.TypeSymlink:
		return buildcache.Link
	}
	return buildcache.Other
}

// gitState asks git in the guest, where there is a .git between the context
// and the workspace. What git does not tell stays unknown.
func (d *dockerCall) gitState(ctx context.Context, t *buildTree) {
	base := guestPath(d.lease, "")
	for dir := t.context; ; dir = path.Dir(dir) {
		if _, err := d.guest.Stat(ctx, path.Join(dir, ".git"), false); err == nil {
			break
		}
		if dir == base || dir == "/" || !strings.HasPrefix(dir, base) {
			return
		}
	}
	var out bytes.Buffer
	p, err := d.guest.Run(ctx, guest.NewID("git-"), guest.Spec{Command: buildcache.GitCommand, Dir: t.context, Timeout: gitStateWithin}, func(o guest.Output) {
		if o.Stream == guest.Stdout && out.Len() < 4096 {
			out.Write(o.Data)
		}
	})
	if err == nil && p.Status == guest.StatusExited && p.ExitCode == 0 {
		t.state.ParseGit(out.String())
	}
}

// autoArgs are the build arguments that are added to the caller's: those about
// the state that the Dockerfile declares, since Docker warns of others and a
// time that nobody reads would only cost layers.
func (t *buildTree) autoArgs(given map[string]string) map[string]string {
	args := t.state.Args()
	for k := range args {
		if _, ok := given[k]; ok || !t.file.Declares(k) {
			delete(args, k)
		}
	}
	return args
}

// bases are the images that the Dockerfile needs, as far as the engine has
// them now.
func (d *dockerCall) bases(ctx context.Context, t *buildTree, args map[string]string) ([]buildcache.Base, error) {
	var list []buildcache.Base
	for _, ref := range t.file.Images(args) {
		b := buildcache.Base{Ref: ref}
		if config.IsImageReference(ref) {
			img, err := d.engine.Image(ctx, ref)
			if err != nil && !errors.Is(err, docker.ErrNotFound) {
				return nil, d.engineFault(ctx, "looking for the base image "+ref, err)
			}
			b.ID = img.ID
		}
		list = append(list, b)
	}
	return list, nil
}

// key names the build, "" where files could not be read, or bases not be told,
// and nothing can stand for it.
func (t *buildTree) key(r DockerBuildRequest, buildkit bool, bases []buildcache.Base) string {
	// Which image a base with variables is that only Docker knows cannot be
	// told: another one behind it would not change the key.
	if len(t.unreadable) > 0 || slices.ContainsFunc(bases, func(b buildcache.Base) bool { return strings.Contains(b.Ref, "$") }) {
		return ""
	}
	auto := t.autoArgs(r.BuildArgs)
	delete(auto, buildcache.TimestampArg)
	return buildcache.Input{
		Content: t.state.Content, Ignore: t.ignore, Dockerfile: t.state.Dockerfile, Target: r.Target,
		Args: r.BuildArgs, Auto: auto, Buildkit: buildkit, Bases: bases,
	}.Key()
}

// unnamed is why a build has no key.
func (t *buildTree) unnamed() string {
	if len(t.unreadable) > 0 {
		return "files of the context could not be read: " + clipText(t.unreadable[0], 200)
	}
	return "only Docker knows which image a base with variables in its name is"
}

// variant tells builds of one tree apart.
func (t *buildTree) variant(r DockerBuildRequest) buildcache.Variant {
	v := buildcache.Variant{Target: r.Target, Args: maps.Clone(r.BuildArgs)}
	if !t.usual {
		v.Dockerfile = t.dockerfile
	}
	return v
}

// workspaceState is a state as clients see it.
func workspaceState(s buildcache.State) WorkspaceState {
	return WorkspaceState{
		GitCommit: known(s.Commit), GitShort: known(s.Short()), GitBranch: known(s.Branch), GitDirty: s.Dirty,
		DependenciesHash: known(s.Dependencies), DockerfileHash: known(s.Dockerfile), ContentHash: s.Content, BuildTimestamp: s.Timestamp(),
	}
}

// known is nil for "".
func known(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
