package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// builder builds in one directory of the shared VM's workspace.
type builder struct {
	*server
	id  string
	dir string // relative to the workspace
}

// newBuilder makes an empty build context in the VM.
func newBuilder(t testing.TB) *builder {
	t.Helper()
	sv, id := dockerVM(t)
	b := &builder{server: sv, id: id, dir: "build-" + strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))}
	b.sh(t, "true")
	return b
}

// sh runs a script in the context.
func (b *builder) sh(t testing.TB, script string) string {
	t.Helper()
	return b.output(t, b.id, "set -e; mkdir -p /workspace/"+b.dir+"; cd /workspace/"+b.dir+"\n"+script)
}

// with adds to the arguments of a build of the context.
func (b *builder) with(args obj) obj {
	all := obj{"instance_id": b.id, "context_path": b.dir, "image_tag": b.dir + ":1"}
	for k, v := range args {
		all[k] = v
	}
	return all
}

func (b *builder) build(t testing.TB, args obj) sandbox.DockerBuildResult {
	t.Helper()
	var r sandbox.DockerBuildResult
	b.must(t, "docker_build", b.with(args), &r)
	if r.ExitCode != 0 || r.ImageID == "" || r.CacheHit != (r.TaskID == "") || r.CacheHit != (r.Command == "") {
		t.Fatalf("docker_build %v: %+v", args, r)
	}
	return r
}

// hit and miss are builds of which is known whether they build.
func (b *builder) hit(t testing.TB, why string, args obj) sandbox.DockerBuildResult {
	t.Helper()
	r := b.build(t, args)
	if !r.CacheHit {
		t.Errorf("%s: built instead of reused: %+v", why, r.Validation)
	}
	return r
}

func (b *builder) miss(t testing.TB, why string, args obj) sandbox.DockerBuildResult {
	t.Helper()
	r := b.build(t, args)
	if r.CacheHit {
		t.Errorf("%s: reused instead of built", why)
	}
	return r
}

// withoutRoom is a configuration with which a call that would build fails at once.
const withoutRoom = "[build]\nmin_free_gib = 100000\n"

// wouldBuild is miss where the image itself is of no interest.
func (b *builder) wouldBuild(t testing.TB, why string) {
	t.Helper()
	var r sandbox.DockerBuildResult
	ctx, cancel := contextFor(3 * time.Minute)
	defer cancel()
	var te *toolError
	if err := b.call(ctx, "docker_build", b.with(nil), &r); !errors.As(err, &te) || te.Code != fault.InsufficientDisk {
		t.Errorf("%s: %v, %+v", why, err, r)
	}
}

func (b *builder) validate(t testing.TB, args obj) sandbox.ValidateImageResult {
	t.Helper()
	var r sandbox.ValidateImageResult
	all := obj{"instance_id": b.id, "image_name": b.dir + ":1", "context_path": b.dir}
	for k, v := range args {
		all[k] = v
	}
	b.must(t, "validate_image", all, &r)
	return r
}

// config sets the workspace's configuration until the test ends, or the next
// call.
func (b *builder) config(t testing.TB, toml string) {
	t.Helper()
	file := filepath.Join(b.workspace, ".sandboxforge.toml")
	if err := os.WriteFile(file, []byte(toml), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(file) })
}

const git = "git -c user.name=a -c user.email=a@example.invalid -c init.defaultBranch=main "

func TestBuildIsReusedForTheSameContextOnly(t *testing.T) {
	b := newBuilder(t)
	b.sh(t, `printf 'FROM scratch AS dev\nCOPY . /\nFROM scratch AS prod\nARG V=0\nCOPY a /$V\n' >Dockerfile
printf '*.log\n' >.dockerignore; echo one >a; echo log >b.log; ln -s a link; mkdir d; echo x >d/f`)
	first := b.miss(t, "nothing there", nil)
	if !slices.Contains(first.Validation.Reasons, "image_missing") || first.Validation.Recommendation != "build" || first.Validation.ImageMetadata != nil {
		t.Errorf("validation of nothing: %+v", first.Validation)
	}
	if s := first.WorkspaceState; s.GitCommit != nil || s.GitDirty != nil || s.DependenciesHash != nil || s.DockerfileHash == nil || len(s.ContentHash) != 64 {
		t.Errorf("workspace state: %+v", s)
	}
	if first.CachedImageTag == nil || !strings.HasPrefix(*first.CachedImageTag, b.dir+":nogit-nodeps-") || first.CacheStrategy != "smart" {
		t.Errorf("cached tag: %+v", first)
	}
	labels := b.sh(t, "docker image inspect -f '{{json .Config.Labels}}' "+*first.CachedImageTag)
	for _, want := range []string{`"build.content.hash":"` + first.WorkspaceState.ContentHash, `"build.timestamp":"` + first.WorkspaceState.BuildTimestamp, "sandboxforge.build.key", "org.opencontainers.image.created"} {
		if !strings.Contains(labels, want) {
			t.Errorf("%s is not in %s", want, labels)
		}
	}

	began := time.Now()
	if r := b.hit(t, "the same", nil); r.ImageID != first.ImageID || !r.Validation.Valid || r.Validation.Recommendation != "reuse" || r.Validation.ImageMetadata == nil {
		t.Errorf("a hit: %+v", r)
	}
	t.Logf("a hit took %v", time.Since(began))
	b.hit(t, "an absolute path", obj{"context_path": "/workspace/" + b.dir})
	b.hit(t, "a path of the host", obj{"context_path": filepath.Join(b.workspace, b.dir)})
	b.hit(t, "the Dockerfile by its name", obj{"dockerfile": "Dockerfile"})
	b.hit(t, "the Dockerfile from the workspace", obj{"dockerfile": b.dir + "/Dockerfile"})
	if r := b.hit(t, "another name", obj{"image_tag": b.dir + "-other"}); r.ImageID != first.ImageID {
		t.Errorf("another name for %s: %+v", first.ImageID, r)
	}
	if id := b.sh(t, "docker image inspect -f '{{.Id}}' "+b.dir+"-other:latest"); strings.TrimSpace(id) != first.ImageID {
		t.Errorf("the other name is %s", id)
	}

	b.config(t, withoutRoom)
	for _, c := range []struct{ why, change, back string }{
		{"a changed byte of the same size and time", "touch -r a /tmp/t; echo two >a; touch -r /tmp/t a", "echo one >a"},
		{"another mode", "chmod 755 a", "chmod 644 a"},
		{"another link", "ln -sfn b link", "ln -sfn a link"},
		{"a new file", "touch new", "rm new"},
		{"a new directory", "mkdir e", "rmdir e"},
		{"a file less", "mv d/f /tmp/f", "mv /tmp/f d/f"},
		{".dockerignore", "echo '# none' >>.dockerignore", "printf '*.log\\n' >.dockerignore"},
		{"the Dockerfile", "echo '# none' >>Dockerfile", "sed -i '$d' Dockerfile"},
	} {
		b.sh(t, c.change)
		b.wouldBuild(t, c.why)
		b.sh(t, c.back)
		if r := b.hit(t, c.why+", undone", nil); r.ImageID != first.ImageID {
			t.Errorf("%s undone: %s, want %s", c.why, r.ImageID, first.ImageID)
		}
	}
	b.sh(t, "echo more >>b.log; touch c.log")
	b.hit(t, "files that .dockerignore excludes", nil)
	b.config(t, "")

	dev := b.miss(t, "a target", obj{"target": "dev"})
	prod := b.miss(t, "another target", obj{"target": "prod"})
	v1 := b.miss(t, "an argument", obj{"target": "prod", "build_args": obj{"V": "1"}})
	v2 := b.miss(t, "another argument", obj{"target": "prod", "build_args": obj{"V": "2 '$(id)'"}})
	ids := map[string]bool{}
	for _, r := range []sandbox.DockerBuildResult{dev, prod, v1, v2} {
		ids[r.ImageID+*r.CachedImageTag] = true
	}
	if len(ids) != 4 {
		t.Errorf("variants share images or names: %v", ids)
	}
	if r := b.hit(t, "the first target again", obj{"target": "dev"}); r.ImageID != dev.ImageID || r.ImageID == prod.ImageID {
		t.Errorf("dev is %s: %+v", dev.ImageID, r)
	}
	if strings.Contains(v2.Command, "$(id)") || !strings.Contains(v2.Command, "--build-arg=V") {
		t.Errorf("the command shows values: %s", v2.Command)
	}

	// Whatever is built from an image inherits its labels.
	derive := `docker build -q -t ` + b.dir + `:1 - <<E
FROM ` + b.dir + `:1
LABEL derived=1
E
`
	b.sh(t, derive)
	if v := b.validate(t, nil); v.Valid || !slices.Contains(v.Reasons, "not_proven_by_labels") {
		t.Errorf("an image that inherits labels: %+v", v)
	}
	if r := b.hit(t, "the image that another was derived from", nil); r.ImageID != first.ImageID {
		t.Errorf("it is %s, want %s", r.ImageID, first.ImageID)
	}
	if v := b.validate(t, nil); !v.Valid {
		t.Errorf("the image itself: %+v", v)
	}
	b.sh(t, derive+"docker rmi -f "+first.ImageID+" >/dev/null")
	b.miss(t, "only the derived image is left", nil)

	if r := b.miss(t, "no_cache", obj{"no_cache": true}); !strings.Contains(r.Command, "--no-cache") || r.Validation != nil {
		t.Errorf("no_cache: %+v", r)
	}
	b.config(t, "[build]\nenable_buildkit = false\n")
	if r := b.miss(t, "the classic builder", nil); strings.Contains(r.Command, "buildx") || !strings.Contains(r.Stdout, "Step 1/") {
		t.Errorf("the classic builder: %+v", r)
	}
	b.hit(t, "the classic builder again", nil)
	b.config(t, "[build]\nenable_buildkit = true\n")
	b.hit(t, "BuildKit's is still there", nil)
}

// TestBuildFollowsItsBase: an image whose base is another now is built anew;
// the steps are heard of; declared arguments arrive.
func TestBuildFollowsItsBase(t *testing.T) {
	b := newBuilder(t)
	b.sh(t, `echo 1 >go.sum; printf 'ARG BASE=base-of-test:1\nFROM $BASE\nARG GIT_COMMIT=none\nARG DEPENDENCIES_HASH\nARG WORKSPACE_CONTENT_HASH\nARG BUILD_TIMESTAMP\nCOPY go.sum /\nRUN sleep 2\nRUN echo "$DEPENDENCIES_HASH $WORKSPACE_CONTENT_HASH $BUILD_TIMESTAMP $GIT_COMMIT" > /args\n' >Dockerfile
docker tag toolbox:1 base-of-test:1`)
	r := b.miss(t, "nothing there", nil)
	want := fmt.Sprintf("%s %s %s none", *r.WorkspaceState.DependenciesHash, r.WorkspaceState.ContentHash, r.WorkspaceState.BuildTimestamp)
	if got := strings.TrimSpace(b.sh(t, "docker run --rm "+b.dir+":1 cat /args")); got != want {
		t.Errorf("arguments in the image: %s, want %s", got, want)
	}
	b.mu.Lock()
	heard := slices.ContainsFunc(b.progress, func(m string) bool { return strings.Contains(m, "build: ") && strings.Contains(m, "RUN sleep 2") })
	b.mu.Unlock()
	if !heard {
		t.Error("no progress of the step")
	}
	if strings.Contains(r.Stderr, "were not consumed") || strings.Contains(r.Stdout, "were not consumed") {
		t.Errorf("Docker was given arguments that nobody declared: %s", r.Stderr)
	}
	b.hit(t, "the same base", nil)
	b.sh(t, "docker build -q -t base-of-test:1 - <<E\nFROM toolbox:1\nLABEL changed=1\nE")
	b.miss(t, "another base", nil)
	b.miss(t, "the base by argument", obj{"build_args": obj{"BASE": "base-of-test:1"}})
	b.hit(t, "the base by argument again", obj{"build_args": obj{"BASE": "base-of-test:1"}})
}

// TestBuildByGit holds the policies against a repository: clean, dirty, and of
// another commit with the same content.
func TestBuildByGit(t *testing.T) {
	b := newBuilder(t)
	b.sh(t, `printf 'FROM scratch\nCOPY a go.sum /\n' >Dockerfile; echo 1 >a; echo 1 >go.sum; printf '.git\n' >.dockerignore
`+git+`init -q . && git add -A && `+git+`commit -qm one`)
	head := strings.TrimSpace(b.sh(t, "git rev-parse HEAD"))
	r := b.miss(t, "nothing there", nil)
	if s := r.WorkspaceState; s.GitCommit == nil || *s.GitCommit != head || *s.GitShort != head[:8] || *s.GitBranch != "main" || *s.GitDirty || s.DependenciesHash == nil {
		t.Errorf("workspace state: %+v", s)
	}
	if want := fmt.Sprintf("%s:%s-%s", b.dir, head[:8], (*r.WorkspaceState.DependenciesHash)[:12]); r.CachedImageTag == nil || *r.CachedImageTag != want {
		t.Errorf("cached tag %v, want %s", r.CachedImageTag, want)
	}
	if v := b.validate(t, nil); !v.Valid || v.Recommendation != "reuse" || v.ExpectedImageTag != *r.CachedImageTag || *v.ImageMetadata.GitCommit != head || *v.ImageMetadata.GitBranch != "main" {
		t.Errorf("validate_image: %+v", v)
	}
	b.hit(t, "clean", nil)
	dirty := "[build.staleness_detection]\non_dirty_workspace = %q\n"

	b.sh(t, "echo untracked >u; echo u >>.dockerignore; git add .dockerignore; "+git+"commit -qm two; rm u; touch u")
	// u is no part of the context, but of the repository.
	b.config(t, fmt.Sprintf(dirty, "warn"))
	b.miss(t, "first of this commit", nil)
	if r = b.hit(t, "dirty, warn", nil); len(r.Warnings) == 0 || !*r.WorkspaceState.GitDirty {
		t.Errorf("dirty, warn: %+v", r)
	}
	b.config(t, fmt.Sprintf(dirty, "warn_and_rebuild"))
	if r = b.miss(t, "dirty, warn_and_rebuild", nil); len(r.Warnings) == 0 || !slices.Contains(r.Validation.Reasons, "workspace_has_uncommitted_changes") {
		t.Errorf("dirty, warn_and_rebuild: %+v", r)
	}
	b.config(t, fmt.Sprintf(dirty, "rebuild"))
	if r = b.miss(t, "dirty, rebuild", nil); len(r.Warnings) != 0 {
		t.Errorf("dirty, rebuild: %+v", r)
	}
	b.config(t, fmt.Sprintf(dirty, "fail"))
	b.fails(t, fault.PrebuiltImageInvalid, "docker_build", b.with(nil))
	b.miss(t, "no_cache builds all the same", obj{"no_cache": true})
	b.config(t, fmt.Sprintf(dirty, "fail")+"check_git_dirty = false\n")
	b.hit(t, "nobody looks for changes", nil)
	if v := b.validate(t, nil); !v.Valid {
		t.Errorf("check_git_dirty = false: %+v", v)
	}
	if v := b.validate(t, obj{"checks": obj{"git_dirty": true}}); v.Valid || v.Recommendation != "fail" {
		t.Errorf("asked for: %+v", v)
	}

	b.sh(t, "rm u; "+git+"commit -q --allow-empty -m three")
	b.config(t, "[build.staleness_detection]\ncheck_git_commit = false\n")
	b.hit(t, "another commit that nobody compares", nil)
	b.config(t, "[build.image_caching]\nstrategy = \"content_hash\"\n")
	if r = b.hit(t, "by content", nil); r.CacheStrategy != "content_hash" || !strings.HasSuffix(*r.CachedImageTag, "-"+r.WorkspaceState.ContentHash[:12]) {
		t.Errorf("by content: %+v", r)
	}
	b.config(t, "[build.staleness_detection]\non_stale = \"fail\"\n")
	b.fails(t, fault.PrebuiltImageInvalid, "docker_build", b.with(nil))
	b.config(t, "[build.staleness_detection]\non_stale = \"warn\"\n")
	if r = b.hit(t, "stale, warn", nil); len(r.Warnings) == 0 {
		t.Errorf("stale, warn: %+v", r)
	}
	if v := b.validate(t, nil); v.Valid || v.Recommendation != "warn" || !slices.Contains(v.Reasons, "git_commit_mismatch") {
		t.Errorf("another commit: %+v", v)
	}
	b.config(t, "[build.image_caching]\nstrategy = \"git_commit\"\ntag_format = \"cache/{image}:{git_short}\"\n")
	if r = b.miss(t, "by commit", nil); *r.CachedImageTag != "cache/"+b.dir+":"+*r.WorkspaceState.GitShort {
		t.Errorf("tag_format: %+v", r)
	}
	b.hit(t, "by commit again", nil)
	b.config(t, "")
	b.hit(t, "the default has that commit now too", nil)

	b.config(t, "[build.staleness_detection]\nmax_age_threshold = 0\n")
	if r = b.miss(t, "any age is too old", nil); !slices.Contains(r.Validation.Reasons, "image_too_old") {
		t.Errorf("age: %+v", r)
	}
	if v := b.validate(t, nil); v.Valid || !slices.Contains(v.Reasons, "image_too_old") {
		t.Errorf("validate_image by age: %+v", v)
	}
	if v := b.validate(t, obj{"checks": obj{"max_age_hours": 1}}); !v.Valid {
		t.Errorf("max_age_hours: %+v", v)
	}
	b.config(t, "[build.image_caching]\nenabled = false\n")
	if r = b.miss(t, "no caching", nil); r.CachedImageTag != nil || r.CacheStrategy != "disabled" {
		t.Errorf("no caching: %+v", r)
	}
	b.config(t, "")

	b.sh(t, "echo 2 >go.sum; "+git+"commit -qam four")
	if v := b.validate(t, nil); !slices.Equal(v.Reasons, []string{"git_commit_mismatch", "dependencies_changed", "content_changed"}) || v.Recommendation != "rebuild" {
		t.Errorf("dependencies: %+v", v)
	}
	if v := b.validate(t, obj{"checks": obj{"git_commit": false, "dependencies": false}}); !slices.Equal(v.Reasons, []string{"content_changed"}) {
		t.Errorf("fewer checks: %+v", v)
	}
	b.config(t, "[build.staleness_detection]\ncheck_dependencies = [\"a\"]\n")
	if v := b.validate(t, nil); v.WorkspaceState.DependenciesHash == nil {
		t.Errorf("other dependencies: %+v", v)
	}
	b.config(t, "[build.staleness_detection]\ncheck_dependencies = [\"no-such-file\"]\n")
	if v := b.validate(t, nil); v.WorkspaceState.DependenciesHash != nil {
		t.Errorf("no dependencies: %+v", v)
	}
	b.config(t, "")
	b.sh(t, "echo '#' >>Dockerfile")
	if v := b.validate(t, nil); !slices.Contains(v.Reasons, "dockerfile_changed") {
		t.Errorf("Dockerfile: %+v", v)
	}
	b.config(t, "[build.staleness_detection]\ncheck_dockerfile = false\n")
	if v := b.validate(t, nil); slices.Contains(v.Reasons, "dockerfile_changed") {
		t.Errorf("check_dockerfile = false: %+v", v)
	}
}

// TestPrebuiltImages gives the asked name to images from elsewhere.
func TestPrebuiltImages(t *testing.T) {
	b := newBuilder(t)
	b.sh(t, `printf 'FROM scratch\nCOPY a /\n' >Dockerfile; echo 1 >a; printf '.git\n' >.dockerignore; `+git+`init -q .; git add -A; `+git+`commit -qm one`)
	head := strings.TrimSpace(b.sh(t, "git rev-parse HEAD"))
	content := b.validate(t, nil).WorkspaceState.ContentHash
	// from makes an image with labels and nothing that a build here would make.
	from := func(labels ...string) string {
		script := "tar c -T /dev/null | docker import --change 'ENV A=b'"
		for _, l := range labels {
			script += " --change 'LABEL " + l + "'"
		}
		return strings.TrimSpace(b.sh(t, script+" - "+b.dir+":1"))
	}
	strict := func(key string) string { return "[build.prebuilt]\n" + key + "\n" }
	stale := func(key string) string { return "[build.prebuilt.staleness_check]\n" + key + "\n" }

	v := b.validate(t, nil)
	if v.Valid || !slices.Equal(v.Reasons, []string{"image_missing"}) || v.Recommendation != "build" || v.ImageMetadata != nil {
		t.Errorf("no image: %+v", v)
	}
	b.config(t, "[build.staleness_detection]\non_missing = \"fail\"\n")
	if v = b.validate(t, nil); v.Recommendation != "fail" {
		t.Errorf("on_missing: %+v", v)
	}
	b.fails(t, fault.ImageNotFound, "docker_build", b.with(nil))
	b.config(t, "")

	for _, c := range []struct {
		why, config string
		labels      []string
		code        fault.Code
		hit, warns  bool
	}{
		{"proven by its content", "", []string{"build.content.hash=" + content}, "", true, false},
		{"proven by its commit", "", []string{"git.commit=" + head}, "", true, false},
		{"a commit that nobody compares", stale("check_git_commit = false"), []string{"git.commit=" + head}, "", false, false},
		{"another commit", "", []string{"git.commit=" + strings.Repeat("0", 40)}, "", false, false},
		{"the commit, but another content", "", []string{"git.commit=" + head, "build.content.hash=0"}, "", false, false},
		{"other dependencies", "", []string{"git.commit=" + head, "build.dependencies.hash=1"}, "", false, false},
		{"dependencies that nobody compares", stale("check_dependencies = false"), []string{"git.commit=" + head, "build.dependencies.hash=1"}, "", true, false},
		{"another Dockerfile", "", []string{"git.commit=" + head, "build.dockerfile.hash=1"}, "", false, false},
		{"another target", "", []string{"git.commit=" + head, "sandboxforge.build.target=dev"}, "", false, false},
		{"no label", "", nil, "", false, false},
		{"no label, warn", strict(`validation = "warn"`), nil, "", true, true},
		{"no label, on_stale fail", stale(`on_stale = "fail"`), nil, fault.PrebuiltImageInvalid, false, false},
		{"no label, on_stale warn", stale(`on_stale = "warn"`), nil, "", false, false},
		{"too old", stale("check_age_threshold = 0"), []string{"git.commit=" + head}, "", false, false},
		{"too old, on_stale warn", stale("check_age_threshold = 0\non_stale = \"warn\""), []string{"git.commit=" + head}, "", true, true},
		{"too old, on_stale fail", stale("check_age_threshold = 0\non_stale = \"fail\""), []string{"git.commit=" + head}, fault.PrebuiltImageInvalid, false, false},
		{"validation disabled", strict(`validation = "disabled"`), []string{"build.content.hash=" + content}, "", false, false},
		{"not enabled", strict("enabled = false"), []string{"build.content.hash=" + content}, "", false, false},
	} {
		id := from(c.labels...)
		code := c.code
		if !c.hit && code == "" {
			code = fault.InsufficientDisk // it goes on to build, for which there is no room
		}
		b.config(t, withoutRoom+c.config)
		if code != "" {
			b.fails(t, code, "docker_build", b.with(nil))
			continue
		}
		if r := b.hit(t, c.why, nil); r.ImageID != id || c.warns != (len(r.Warnings) > 0) || r.CachedImageTag != nil {
			t.Errorf("%s: %+v of %+v", c.why, r, r.Validation)
		}
	}
	b.config(t, "")
	from()
	if r := b.miss(t, "no label", nil); !slices.Contains(r.Validation.Reasons, "not_proven_by_labels") || r.CachedImageTag == nil {
		t.Errorf("no label: %+v", r)
	}
	b.hit(t, "what was built in its place", nil)
	b.config(t, "")
	from()
	if v := b.validate(t, nil); v.Valid || !slices.Equal(v.Reasons, []string{"git_commit_missing_in_image_labels"}) || v.Recommendation != "rebuild" {
		t.Errorf("no label: %+v", v)
	}
	b.sh(t, "echo 1 >uv.lock; git add -A; "+git+"commit -qm two")
	if v := b.validate(t, nil); !slices.Contains(v.Reasons, "dependencies_hash_missing_in_image_labels") {
		t.Errorf("no label for dependencies: %+v", v)
	}
}

func TestBuildRefusesBadInput(t *testing.T) {
	b := newBuilder(t)
	b.sh(t, `printf 'FROM scratch\nCOPY a /\n' >Dockerfile; touch a; mkdir -p sub; ln -sfn /etc out; ln -sfn /etc/passwd Outfile; printf 'a[\n' >sub/.dockerignore; cp Dockerfile sub`)
	tasks := func() int {
		var l sandbox.ListTasksResult
		b.must(t, "list_tasks", obj{"kind": "all", "instance_id": b.id}, &l)
		return slices.IndexFunc(l.Tasks, func(k sandbox.Task) bool {
			return strings.Contains(k.Command, "buildx build") && strings.Contains(k.Command, b.dir)
		})
	}
	for _, args := range []obj{
		{"context_path": ""}, {"context_path": "no-such-dir"}, {"context_path": b.dir + "/a"}, {"context_path": "../.."}, {"context_path": "/etc"}, {"context_path": b.dir + "/out"},
		{"context_path": "a\x00b"}, {"context_path": "-"}, {"context_path": "--help"}, {"context_path": "https://example.invalid/x.git"}, {"context_path": b.dir + "/sub"},
		{"dockerfile": "no-such-file"}, {"dockerfile": "/etc/passwd"}, {"dockerfile": "Outfile"}, {"dockerfile": "sub"}, {"dockerfile": "-"}, {"dockerfile": "a\nb"}, {"dockerfile": "../../../etc/passwd"},
		{"image_tag": ""}, {"image_tag": "--help"}, {"image_tag": "-t"}, {"image_tag": "a b"}, {"image_tag": "a;id"}, {"image_tag": "a\nb"}, {"image_tag": "$(id)"}, {"image_tag": "A"}, {"image_tag": "a:" + strings.Repeat("x", 200)},
		{"image_tag": "a@sha256:" + strings.Repeat("0", 64)},
		{"target": "-x"}, {"target": "a b"}, {"target": "a\n"}, {"target": ""},
		{"build_args": obj{"": "x"}}, {"build_args": obj{"A=B": "x"}}, {"build_args": obj{"-x": "x"}}, {"build_args": obj{"A\nB": "x"}}, {"build_args": obj{"A": "\x00"}}, {"build_args": obj{"A": 1}},
		{"timeout_seconds": 0}, {"no_such_parameter": 1},
	} {
		b.fails(t, fault.InvalidArgument, "docker_build", b.with(args))
	}
	if tasks() >= 0 {
		t.Error("a refused build ran")
	}
	for _, args := range []obj{{"image_name": "--help"}, {"image_name": ""}, {"workspace_root": "/elsewhere"}, {"checks": obj{"max_age_hours": -1}}, {"checks": obj{"colour": 1}}, {"context_path": "/etc"}, {"dockerfile": "no-such-file"}} {
		all := obj{"instance_id": b.id, "image_name": b.dir + ":1"}
		for k, v := range args {
			all[k] = v
		}
		b.fails(t, fault.InvalidArgument, "validate_image", all)
	}
	b.fails(t, fault.InstanceNotFound, "docker_build", b.with(obj{"instance_id": "inst_00000000"}))
	b.fails(t, fault.InstanceNotFound, "validate_image", obj{"instance_id": "inst_00000000", "image_name": "a"})
}

func TestBuildThatFails(t *testing.T) {
	b := newBuilder(t)
	b.sh(t, `printf 'FROM toolbox:1\nRUN echo said before; exit 3\n' >Dockerfile`)
	for _, buildkit := range []bool{true, false} {
		b.config(t, fmt.Sprintf("[build]\nenable_buildkit = %t\n", buildkit))
		e := b.fails(t, fault.DockerCommandFailed, "docker_build", b.with(nil))
		all := fmt.Sprint(e.Details["stdout"], e.Details["stderr"])
		if !strings.Contains(all, "said before") || e.Details["exit_code"] == nil || e.Details["command"] == "" || e.Details["task_id"] == "" || e.Details["duration_ms"] == nil {
			t.Errorf("details: %v", e.Details)
		}
	}
	b.config(t, "[build]\nmin_free_gib = 100000\n")
	e := b.fails(t, fault.InsufficientDisk, "docker_build", b.with(nil))
	if e.Details["free_bytes"] == nil || e.Details["needed_bytes"] == nil || e.Details["reclaimed_bytes"] == nil {
		t.Errorf("details: %v", e.Details)
	}
	b.config(t, "[build]\nmin_free_gib = 0.01\n")
	b.fails(t, fault.DockerCommandFailed, "docker_build", b.with(nil))
}

// sleeping waits for a build step's process in the VM to be there, or to be
// gone.
func (b *builder) sleeping(t testing.TB, seconds string, there bool) {
	t.Helper()
	cond := "until"
	if !there {
		cond = "while"
	}
	b.sh(t, cond+" ps -eo args | grep -q '^sleep "+seconds+"'; do sleep 0.1; done")
}

func TestCancelledBuildStops(t *testing.T) {
	b := newBuilder(t)
	for seconds, buildkit := range map[string]bool{"4711": true, "4712": false} {
		b.config(t, fmt.Sprintf("[build]\nenable_buildkit = %t\n", buildkit))
		b.sh(t, `printf 'FROM toolbox:1\nRUN sleep `+seconds+`\n' >Dockerfile`)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- b.call(ctx, "docker_build", b.with(nil), nil) }()
		b.sleeping(t, seconds, true)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the cancelled build: %v", err)
		}
		b.sleeping(t, seconds, false)

		go func() { done <- b.call(t.Context(), "docker_build", b.with(obj{"timeout_seconds": 20}), nil) }()
		var te *toolError
		if err := <-done; !errors.As(err, &te) || te.Code != fault.CommandTimedOut {
			t.Errorf("the build that takes too long: %v", err)
		}
		b.sleeping(t, seconds, false)
	}
}

// TestEngineDiesDuringBuild kills dockerd; systemd starts it again.
func TestEngineDiesDuringBuild(t *testing.T) {
	b := newBuilder(t)
	b.sh(t, `printf 'FROM toolbox:1\nRUN sleep 4721\n' >Dockerfile`)
	done := make(chan error, 1)
	go func() { done <- b.call(t.Context(), "docker_build", b.with(nil), nil) }()
	b.sleeping(t, "4721", true)
	b.sh(t, "sudo systemctl kill -s KILL docker.service")
	var te *toolError
	if err := <-done; !errors.As(err, &te) || te.Code != fault.DockerCommandFailed || te.Details["stderr"] == "" ||
		!strings.Contains(fmt.Sprint(te.Details["probable_cause"]), "engine in the VM stopped") {
		t.Errorf("the build whose engine died: %v", err)
		if te != nil {
			t.Logf("details: %v", te.Details)
		}
	}
	b.sh(t, "until docker info >/dev/null 2>&1; do sleep 0.5; done; sudo pkill -x -f 'sleep 4721' || true")
	b.sh(t, `printf 'FROM scratch\nLABEL a=b\n' >Dockerfile`)
	b.miss(t, "afterwards", nil)
}

// TestLogOfABuildIsBounded builds with 100 MB of output by the builder that
// passes all of it on.
func TestLogOfABuildIsBounded(t *testing.T) {
	b := newBuilder(t)
	b.sh(t, `printf 'FROM toolbox:1\nRUN echo first; seq 1 13000000; echo last\n' >Dockerfile`)
	b.config(t, "[build]\nenable_buildkit = false\n")
	r := b.build(t, nil)
	if r.StdoutBytes < 100e6 || len(r.Stdout) > 100_000 || !r.StdoutTruncated || !strings.Contains(r.Stdout, "first") || !strings.Contains(r.Stdout, "last") {
		t.Errorf("%d bytes came back of %d, truncated %t", len(r.Stdout), r.StdoutBytes, r.StdoutTruncated)
	}
	b.config(t, "")
	if r = b.build(t, nil); len(r.Stderr) > 100_000 {
		t.Errorf("%d bytes came back of %d", len(r.Stderr), r.StderrBytes)
	}
}

// TestContextThatChangesDuringBuild: the image is made, and stands for nothing
// afterwards.
func TestContextThatChangesDuringBuild(t *testing.T) {
	b := newBuilder(t)
	b.sh(t, `printf 'FROM toolbox:1\nCOPY a /\nRUN sleep 6.471\n' >Dockerfile; echo 1 >a`)
	done := make(chan error, 1)
	var r sandbox.DockerBuildResult
	go func() { done <- b.call(t.Context(), "docker_build", b.with(nil), &r) }()
	b.sleeping(t, "6.471", true)
	b.sh(t, "echo 2 >a")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if r.CacheHit || r.CachedImageTag != nil || len(r.Warnings) == 0 {
		t.Errorf("%+v", r)
	}
	for _, content := range []string{"1", "2"} {
		b.sh(t, "echo "+content+" >a")
		b.miss(t, "content "+content, nil)
		if got := strings.TrimSpace(b.sh(t, "docker run --rm "+b.dir+":1 cat /a")); got != content {
			t.Errorf("the image of %s holds %s", content, got)
		}
	}
}

// TestBuildThatFillsTheDisk has a VM of its own, which must work afterwards.
func TestBuildThatFillsTheDisk(t *testing.T) {
	st := newState(t)
	if err := os.WriteFile(filepath.Join(st.workspace, "Dockerfile"), []byte("FROM toolbox:1\nRUN head -c 100000000000 /dev/zero > /big\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	sv := st.start(t)
	inst := sv.create(t, obj{"workspace_root": st.workspace, "wait_for_ready": true,
		"overrides": obj{"vm": obj{"disk_gib": 4}, "build": obj{"min_free_gib": 0.1}}})
	sv.output(t, inst.InstanceID, makeToolbox)
	args := obj{"instance_id": inst.InstanceID, "context_path": ".", "image_tag": "big:1"}
	ctx, cancel := contextFor(8 * time.Minute)
	defer cancel()
	var te *toolError
	if err := sv.call(ctx, "docker_build", args, nil); !errors.As(err, &te) || te.Code != fault.InsufficientDisk || te.Details["exit_code"] == nil {
		t.Fatalf("a build that fills the disk: %v", err)
	}
	t.Logf("%s: %v", te.Message, te.Details["probable_cause"])
	sv.output(t, inst.InstanceID, "set -e; head -c 50000000 /dev/zero >/tmp/room; rm /tmp/room; docker run --rm toolbox:1 true; printf 'FROM toolbox:1\\nRUN echo fine\\n' >/workspace/Dockerfile")
	sv.must(t, "docker_build", args, nil)
}
