package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"sandboxforge/internal/buildcache"
	"sandboxforge/internal/docker"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
)

const (
	defaultBuildTimeout = time.Hour
	// dockerRoot is where the engine keeps images.
	dockerRoot = "/var/lib/docker"
)

var (
	buildTarget = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)
	buildArg    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)

// DockerBuild makes an image of a directory of the guest's workspace, or finds
// the one that an earlier call made of the same. Cancelling ctx, or the
// timeout, stops the build in the guest; images that were there stay as they
// were.
func (s *Service) DockerBuild(ctx context.Context, r DockerBuildRequest) (*DockerBuildResult, error) {
	timeout := defaultBuildTimeout
	if r.TimeoutSeconds != nil {
		var err error
		if timeout, err = commandTimeout(r.TimeoutSeconds); err != nil {
			return nil, err
		}
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	d, err := s.docker(ctx, r.InstanceID)
	if err != nil {
		return nil, err
	}
	defer d.close()
	b := &build{dockerCall: d, request: r, timeout: timeout, caching: d.config.Build.ImageCaching.Enabled}
	out, err := b.run(ctx)
	if !b.ran { // the docker program's own record says it all
		s.record(ctx, "docker_build", r.InstanceID, "", err, map[string]any{"image_tag": r.ImageTag, "cache_hit": err == nil})
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (r DockerBuildRequest) check() error {
	if err := checkImageName("image_tag", r.ImageTag); err != nil {
		return err
	}
	if strings.Contains(r.ImageTag, "@") {
		return fault.New(fault.InvalidArgument, "image_tag is %.80q; a name with a digest cannot be given to a new image", r.ImageTag)
	}
	if r.ContextPath == "" {
		return fault.New(fault.InvalidArgument, "context_path is empty").Next("pass . for the workspace itself")
	}
	if r.Target != "" && !buildTarget.MatchString(r.Target) {
		return fault.New(fault.InvalidArgument, "target is %.80q; it must be the name of a stage: letters, digits, _ . and -, starting with a letter or digit", r.Target)
	}
	for _, k := range slices.Sorted(maps.Keys(r.BuildArgs)) {
		if !buildArg.MatchString(k) {
			return fault.New(fault.InvalidArgument, "build_args has the name %.80q; it must be letters, digits and _, starting with a letter", k)
		}
		if err := checkValue("build_args."+k, r.BuildArgs[k]); err != nil {
			return err
		}
	}
	return nil
}

// build is one call of docker_build.
type build struct {
	*dockerCall
	request   DockerBuildRequest
	timeout   time.Duration
	caching   bool
	tree      *buildTree
	bases     []buildcache.Base
	key       string
	cachedTag string
	out       *DockerBuildResult
	ran       bool // the docker program
}

func (b *build) run(ctx context.Context) (*DockerBuildResult, error) {
	began := time.Now()
	cfg, r := b.config.Build, b.request
	report(ctx, Progress{Stage: "context", Message: "looking at the build context"})
	var err error
	if b.tree, err = b.buildTree(ctx, r.ContextPath, r.Dockerfile, true); err != nil {
		return nil, err
	}
	if b.bases, err = b.dockerCall.bases(ctx, b.tree, r.BuildArgs); err != nil {
		return nil, err
	}
	b.key = b.tree.key(r, cfg.EnableBuildkit, b.bases)
	b.out = &DockerBuildResult{InstanceID: r.InstanceID, ImageTag: r.ImageTag, CacheStrategy: "disabled", WorkspaceState: workspaceState(b.tree.state)}
	if b.caching {
		b.out.CacheStrategy = cfg.ImageCaching.Strategy
		b.cachedTag = buildcache.CachedTag(cfg.ImageCaching, r.ImageTag, b.tree.state, b.tree.variant(r))
		b.out.CachedImageTag = known(b.cachedTag)
	}
	if b.key == "" {
		b.cachedTag, b.out.CachedImageTag = "", nil
		b.warn("the image is not kept as a cached one, because %s", b.tree.unnamed())
	}
	if !r.NoCache {
		if done, err := b.reuse(ctx); done || err != nil {
			b.out.DurationMS = time.Since(began).Milliseconds()
			return b.out, err
		}
	}
	if err := b.makeRoom(ctx); err != nil {
		return nil, err
	}
	return b.out, b.make(ctx)
}

func (b *build) warn(format string, args ...any) {
	b.out.Warnings = append(b.out.Warnings, fmt.Sprintf(format, args...))
}

// reuse looks for an image that makes the build unnecessary and gives it the
// asked names. It asks the engine alone: the docker program's start costs more.
func (b *build) reuse(ctx context.Context) (done bool, err error) {
	var cached []buildcache.Image
	if b.caching && b.key != "" {
		if cached, err = b.recorded(ctx, b.key); err != nil {
			return false, err
		}
	}
	tagged, err := b.imageAt(ctx, b.request.ImageTag)
	if err != nil {
		return false, err
	}
	now := b.s.now()
	dec := buildcache.Decide(b.config.Build, b.tree.state, b.tree.variant(b.request), cached, tagged, now)
	v := validation(dec.Verdict, b.request.ImageTag, dec.Judged, now)
	b.out.Validation = &v
	b.out.Warnings = append(b.out.Warnings, dec.Warnings...)
	if dec.Refused {
		return false, b.refused(dec, v)
	}
	if dec.Reuse == nil {
		return false, nil
	}
	names := []string{b.request.ImageTag}
	if dec.Reuse.Labels[buildcache.LabelKey] == b.key && b.cachedTag != "" {
		names = append(names, b.cachedTag)
	} else {
		b.out.CachedImageTag = nil // what others built is not kept as ours
	}
	for _, n := range names {
		switch err := b.engine.TagImage(ctx, dec.Reuse.ID, n); {
		case errors.Is(err, docker.ErrNotFound):
			return false, nil // somebody has removed it meanwhile: build
		case err != nil:
			return false, b.engineFault(ctx, "naming the image "+n, err)
		}
	}
	b.out.ImageID, b.out.CacheHit = dec.Reuse.ID, true
	return true, nil
}

// refused is why nothing is served and nothing built.
func (b *build) refused(dec buildcache.Decision, v BuildValidation) error {
	r := b.request
	code, format := fault.PrebuiltImageInvalid, "the image %s does not stand for the workspace, and the configuration says to fail then: %s"
	switch {
	case dec.Missing:
		code, format = fault.ImageNotFound, "there is no image %s, and build.staleness_detection.on_missing is fail: %s"
	case dec.Judged == nil:
		format = "%s is not built, because the configuration says to fail: %s"
	}
	e := fault.New(code, format, r.ImageTag, strings.Join(v.Reasons, ", ")).
		With("instance_id", r.InstanceID).With("image_tag", r.ImageTag).With("validation", v).With("workspace_state", b.out.WorkspaceState)
	if slices.Contains(v.Reasons, buildcache.WorkspaceDirty) {
		e = e.Next("commit the changes, or set build.staleness_detection.on_dirty_workspace to warn or warn_and_rebuild")
	}
	if dec.Missing {
		e = e.Next("load or pull the image under this name")
	}
	return e.Next("call docker_build with no_cache=true to build it all the same")
}

// makeRoom sees to it that the guest has the free disk that a build needs.
func (b *build) makeRoom(ctx context.Context) error {
	need := int64(b.config.Build.MinFreeGiB * gib)
	free, err := b.freeBytes(ctx)
	if err != nil || free >= need {
		return err
	}
	report(ctx, Progress{Stage: "cleanup", Message: "removing images and build cache that nothing uses"})
	before := free
	reclaimed, perr := b.engine.Prune(ctx, docker.PruneSafe)
	if perr != nil && ctx.Err() != nil {
		return b.engineFault(ctx, "making room for the build", perr)
	}
	if free, err = b.freeBytes(ctx); err != nil {
		return err
	}
	b.out.ReclaimedBytes = max(reclaimed, 0)
	if free >= need {
		return nil
	}
	e := fault.New(fault.InsufficientDisk, "the VM has %.2f GiB of free disk and a build needs %g (build.min_free_gib)", float64(free)/gib, b.config.Build.MinFreeGiB).
		Because("images, build cache and the workspace fill the disk").
		With("instance_id", b.lease.InstanceID).With("free_bytes", free).With("free_bytes_before", before).With("needed_bytes", need).With("reclaimed_bytes", reclaimed).
		Next("call docker_cleanup with mode aggressive").
		Next("create the instance with a larger vm.disk_gib").
		Next("set a smaller build.min_free_gib if the build needs less")
	if perr != nil {
		e = e.With("cleanup_error", perr.Error())
	}
	return e
}

// freeBytes is the free disk where the engine keeps its images.
func (b *build) freeBytes(ctx context.Context) (int64, error) {
	var out bytes.Buffer
	p, err := b.guest.Run(ctx, guest.NewID("disk-"), guest.Spec{
		Argv: []string{"stat", "--file-system", "--format=%a %S", "--", dockerRoot}, User: "root", Dir: "/", Timeout: 30 * time.Second,
	}, func(o guest.Output) {
		if out.Len() < 4096 {
			out.Write(o.Data)
		}
	})
	if err != nil {
		return 0, b.s.guestFault(ctx, b.lease, "asking for the free disk", err)
	}
	blocks, size, ok := strings.Cut(strings.TrimSpace(out.String()), " ")
	n, err1 := strconv.ParseInt(blocks, 10, 64)
	m, err2 := strconv.ParseInt(size, 10, 32)
	if p.ExitCode != 0 || !ok || err1 != nil || err2 != nil || n < 0 || m <= 0 || n > (1<<62)/m {
		return 0, fault.New(fault.DockerCommandFailed, "the VM does not say how much disk is free: %s", lastLine(out.Bytes())).With("instance_id", b.lease.InstanceID)
	}
	return n * m, nil
}

// make builds. A context that changed meanwhile is not what the key names: the
// image is then not recorded, so that it never stands for a context that it was
// not made of.
func (b *build) make(ctx context.Context) error {
	if err := b.command(ctx); err != nil || b.key == "" {
		return err
	}
	same, err := b.unchanged(ctx)
	if err != nil {
		return err
	}
	if !same {
		b.warn("the context changed while it was built; the image may hold some of the files before and some after, and is not reused")
		b.out.CachedImageTag = nil
		return nil
	}
	if b.cachedTag != "" {
		if err := b.engine.TagImage(ctx, b.out.ImageID, b.cachedTag); err != nil {
			return b.engineFault(ctx, "naming the image "+b.cachedTag, err)
		}
	}
	return b.record(ctx, b.key, b.out.ImageID)
}

// unchanged reports whether the context is still what the key names.
func (b *build) unchanged(ctx context.Context) (bool, error) {
	again := *b.tree
	if err := b.scanTree(ctx, &again, b.tree.entries); err != nil {
		return false, err
	}
	bases, err := b.dockerCall.bases(ctx, &again, b.request.BuildArgs)
	if err != nil {
		return false, err
	}
	for i := range bases {
		// An image that the build itself has fetched was absent before.
		if i < len(b.bases) && b.bases[i].ID == "" {
			bases[i].ID = ""
		}
	}
	return again.key(b.request, b.config.Build.EnableBuildkit, bases) == b.key, nil
}

// command runs the docker program.
func (b *build) command(ctx context.Context) error {
	r, t := b.request, b.tree
	args := t.autoArgs(r.BuildArgs)
	maps.Copy(args, r.BuildArgs)
	c := docker.Build{
		Context: t.context, Dockerfile: t.dockerfile, Tags: []string{r.ImageTag}, Target: r.Target, Args: args,
		Labels: buildcache.Labels(t.state, b.key, r.Target, r.BuildArgs), NoCache: r.NoCache, Buildkit: b.config.Build.EnableBuildkit,
	}
	dir, name := "/tmp", guest.NewID("sandboxforge-build-")
	c.IDFile = path.Join(dir, name)
	defer b.removeFile(ctx, dir, name)
	run := dockerRun{tool: "docker_build", args: c.CommandLine(), cwd: t.context, timeout: b.timeout, watch: watchBuild(ctx)}
	if !c.Buildkit {
		run.env = docker.ClassicBuilder()
	}
	file := c.IDFile
	c.Labels, c.IDFile = nil, "" // what nobody asked for is not shown
	run.shown = hideValues(c.CommandLine())
	b.ran = true
	mark := b.engineMark(ctx)
	res, err := b.dockerCall.run(ctx, run)
	if err != nil {
		return err
	}
	b.out.CommandResult = *res
	if res.ExitCode != 0 {
		return b.buildFault(ctx, res, mark)
	}
	// Not by its name, which may be another image's already.
	id, err := b.guest.ReadFile(ctx, file, 1024)
	if err != nil {
		return b.s.guestFault(ctx, b.lease, "reading the id of the built image", err)
	}
	img, err := b.engine.Image(ctx, strings.TrimSpace(string(id)))
	if errors.Is(err, docker.ErrNotFound) {
		return b.failed(fault.DockerCommandFailed, res, "docker build ended without an error, and its image is gone")
	}
	if err != nil {
		return b.engineFault(ctx, "looking for the built image", err)
	}
	b.out.ImageID = img.ID
	return nil
}

// removeFile removes a file in the guest, also for a caller who has gone.
func (d *dockerCall) removeFile(ctx context.Context, dir, name string) {
	ctx, cancel := detached(ctx, answerWithin)
	defer cancel()
	if _, err := d.guest.Remove(ctx, dir, []string{name}, false); err != nil {
		d.s.log.Debug("file in the guest not removed", "file", path.Join(dir, name), "error", err)
	}
}

// hideValues takes the values of build arguments out of a command line, which
// docker would then read from its environment.
func hideValues(args []string) []string {
	out := slices.Clone(args)
	for i, a := range out {
		if rest, ok := strings.CutPrefix(a, "--build-arg="); ok {
			name, _, _ := strings.Cut(rest, "=")
			out[i] = "--build-arg=" + name
		}
	}
	return out
}

// watchBuild reports the steps that a builder prints.
func watchBuild(ctx context.Context) func(guest.Output) {
	on := func(s docker.BuildStep) {
		report(ctx, Progress{Stage: "build", Message: lastLine([]byte(s.Text)), Done: float64(s.Number), Total: float64(s.Total)})
	}
	// BuildKit writes to stderr, the classic builder to stdout.
	streams := map[guest.Stream]*docker.BuildSteps{guest.Stdout: {On: on}, guest.Stderr: {On: on}}
	return func(o guest.Output) {
		if s := streams[o.Stream]; s != nil {
			_, _ = s.Write(o.Data)
		}
	}
}

// noSpace reports whether a build's output ends with a full disk.
func noSpace(out string) bool {
	return strings.Contains(strings.ToLower(out[max(0, len(out)-4096):]), "no space left on device")
}

// enginePID is the file that an engine writes when it starts.
const enginePID = "/run/docker.pid"

// engineMark tells one run of the engine from the next.
func (d *dockerCall) engineMark(ctx context.Context) (mark [2]int64) {
	if e, err := d.guest.Stat(ctx, enginePID, false); err == nil {
		mark = [2]int64{int64(e.Inode), e.CTime.UnixNano()}
	}
	return mark
}

// engineStopped reports whether the engine is another one than at mark, or gone.
func (d *dockerCall) engineStopped(ctx context.Context, mark [2]int64) bool {
	// One that starts again keeps the question waiting until it is there.
	ping, cancel := context.WithTimeout(ctx, dockerPatience)
	defer cancel()
	err := d.engine.Ping(ping)
	return ctx.Err() == nil && (err != nil || d.engineMark(ctx) != mark)
}

// buildFault is why docker build failed; mark is the engine's before it.
func (b *build) buildFault(ctx context.Context, res *CommandResult, mark [2]int64) error {
	full := noSpace(res.Stdout) || noSpace(res.Stderr)
	if full {
		e := b.failed(fault.InsufficientDisk, res, "the build filled the VM's disk")
		// What a failed build leaves must not keep the VM from working.
		if n, err := b.engine.Prune(ctx, docker.PruneSafe); err == nil {
			e = e.With("reclaimed_bytes", n)
		}
		if free, err := b.freeBytes(ctx); err == nil {
			e = e.With("free_bytes", free)
		}
		return e.Next("call docker_cleanup with mode aggressive").
			Next("create the instance with a larger vm.disk_gib").
			Next("leave out in .dockerignore what the build does not need")
	}
	e := b.failed(fault.DockerCommandFailed, res, "docker build failed with exit code %d", res.ExitCode)
	if b.engineStopped(ctx, mark) {
		return e.Because("the Docker engine in the VM stopped during the build").
			Next("call prepare_workspace with wait_for_ready=true, then docker_build again").
			Next("look at `journalctl -u docker -n 50` with run_command")
	}
	return e.Next("read the output in details.stderr; all of it is in get_task_logs with task_id %s", res.TaskID)
}
