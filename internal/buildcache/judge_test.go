package buildcache

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sandboxforge/internal/config"
)

var now = time.Date(2030, 1, 2, 0, 0, 0, 0, time.UTC)

// policy is the default configuration's.
func policy() config.BuildConfig {
	return config.BuildConfig{
		Prebuilt:     config.PrebuiltConfig{Enabled: true, Validation: "strict", StalenessCheck: config.PrebuiltStaleness{CheckGitCommit: true, CheckDependencies: true, CheckAgeThreshold: 24 * time.Hour, OnStale: "rebuild"}},
		ImageCaching: config.ImageCachingConfig{Enabled: true, Strategy: "smart"},
		StalenessDetection: config.StalenessConfig{CheckGitCommit: true, CheckGitDirty: true, CheckDockerfile: true, CheckDependencies: []string{"go.sum"},
			MaxAgeThreshold: 24 * time.Hour, OnStale: "rebuild", OnDirtyWorkspace: "warn_and_rebuild", OnMissing: "build"},
	}
}

func clean() State {
	no := false
	return State{Commit: strings.Repeat("a", 40), Dirty: &no, Dependencies: "deps", Dockerfile: "file", Content: "content", Time: now}
}

func noGit() State { s := clean(); s.Commit, s.Dirty = "", nil; return s }

func dirty() State { s := clean(); yes := true; s.Dirty = &yes; return s }

func built(s State, age time.Duration) Image {
	s.Time = s.Time.Add(-age)
	return Image{ID: "sha256:1", Created: now, Labels: Labels(s, "key", "", nil)}
}

// foreign is an image with some labels and no key.
func foreign(labels ...string) *Image {
	i := &Image{ID: "sha256:2", Created: now.Add(-time.Hour), Labels: map[string]string{}}
	for _, l := range labels {
		k, v, _ := strings.Cut(l, "=")
		i.Labels[k] = v
	}
	return i
}

func TestDecide(t *testing.T) {
	commit := LabelCommit + "=" + strings.Repeat("a", 40)
	other := clean()
	other.Commit = strings.Repeat("b", 40)
	keyed := func(i Image) *Image { return &i }
	type cfg = func(b *config.BuildConfig)
	for _, c := range []struct {
		name   string
		cfg    cfg
		s      State
		v      Variant
		cached []Image
		tagged *Image
		want   string // reuse, build, refuse, missing
		reason string
		warns  bool
	}{
		{name: "nothing there", s: clean(), want: "build", reason: ImageMissing},
		{name: "nothing there, warn", cfg: func(b *config.BuildConfig) { b.StalenessDetection.OnMissing = "warn" }, s: clean(), want: "build", reason: ImageMissing, warns: true},
		{name: "nothing there, fail", cfg: func(b *config.BuildConfig) { b.StalenessDetection.OnMissing = "fail" }, s: clean(), want: "missing", reason: ImageMissing},
		{name: "a hit", s: clean(), cached: []Image{built(clean(), time.Hour)}, want: "reuse"},
		{name: "a hit, on_missing is nothing to it", cfg: func(b *config.BuildConfig) { b.StalenessDetection.OnMissing = "fail" }, s: clean(), cached: []Image{built(clean(), 0)}, want: "reuse"},
		{name: "a hit without git", s: noGit(), cached: []Image{built(noGit(), 0)}, want: "reuse"},
		{name: "too old", s: clean(), cached: []Image{built(clean(), 25*time.Hour)}, want: "build", reason: ImageTooOld},
		{name: "older threshold", cfg: func(b *config.BuildConfig) { b.StalenessDetection.MaxAgeThreshold = 48 * time.Hour }, s: clean(), cached: []Image{built(clean(), 25*time.Hour)}, want: "reuse"},
		{name: "too old, warn", cfg: func(b *config.BuildConfig) { b.StalenessDetection.OnStale = "warn" }, s: clean(), cached: []Image{built(clean(), 25*time.Hour)}, want: "reuse", reason: ImageTooOld, warns: true},
		{name: "too old, fail", cfg: func(b *config.BuildConfig) { b.StalenessDetection.OnStale = "fail" }, s: clean(), cached: []Image{built(clean(), 25*time.Hour)}, want: "refuse", reason: ImageTooOld},
		{name: "a younger one beside it", cfg: func(b *config.BuildConfig) { b.StalenessDetection.OnStale = "fail" }, s: clean(), cached: []Image{built(clean(), 25*time.Hour), built(clean(), 0)}, want: "reuse"},
		{name: "built in the future", s: clean(), cached: []Image{built(clean(), -time.Hour)}, want: "reuse"},
		{name: "dirty", s: dirty(), cached: []Image{built(dirty(), 0)}, want: "build", reason: WorkspaceDirty, warns: true},
		{name: "dirty, rebuild", cfg: func(b *config.BuildConfig) { b.StalenessDetection.OnDirtyWorkspace = "rebuild" }, s: dirty(), cached: []Image{built(dirty(), 0)}, want: "build", reason: WorkspaceDirty},
		{name: "dirty, warn", cfg: func(b *config.BuildConfig) { b.StalenessDetection.OnDirtyWorkspace = "warn" }, s: dirty(), cached: []Image{built(dirty(), 0)}, want: "reuse", reason: WorkspaceDirty, warns: true},
		{name: "dirty, fail", cfg: func(b *config.BuildConfig) { b.StalenessDetection.OnDirtyWorkspace = "fail" }, s: dirty(), cached: []Image{built(dirty(), 0)}, want: "refuse", reason: WorkspaceDirty},
		{name: "dirty, fail, nothing there", cfg: func(b *config.BuildConfig) { b.StalenessDetection.OnDirtyWorkspace = "fail" }, s: dirty(), want: "refuse", reason: WorkspaceDirty},
		{name: "dirty, not looked at", cfg: func(b *config.BuildConfig) { b.StalenessDetection.CheckGitDirty = false }, s: dirty(), cached: []Image{built(dirty(), 0)}, want: "reuse"},
		{name: "another commit, same content", s: other, cached: []Image{built(clean(), 0)}, want: "build", reason: CommitMismatch},
		{name: "another commit, not compared", cfg: func(b *config.BuildConfig) { b.StalenessDetection.CheckGitCommit = false }, s: other, cached: []Image{built(clean(), 0)}, want: "reuse"},
		{name: "another commit, by content", cfg: func(b *config.BuildConfig) { b.ImageCaching.Strategy = "content_hash" }, s: other, cached: []Image{built(clean(), 0)}, want: "reuse"},
		{name: "by commit", cfg: func(b *config.BuildConfig) { b.ImageCaching.Strategy = "git_commit" }, s: clean(), cached: []Image{built(clean(), 0)}, want: "reuse"},
		{name: "by commit, another", cfg: func(b *config.BuildConfig) {
			b.ImageCaching.Strategy, b.StalenessDetection.CheckGitCommit, b.StalenessDetection.OnStale = "git_commit", false, "warn"
		}, s: other, cached: []Image{built(clean(), 0)}, want: "build", reason: CommitMismatch},
		{name: "by commit, no git", cfg: func(b *config.BuildConfig) { b.ImageCaching.Strategy = "git_commit" }, s: noGit(), cached: []Image{built(noGit(), 0)}, want: "build", warns: true},
		{name: "other content under the name", s: clean(), tagged: keyed(built(noGit(), 0)), want: "build", reason: CommitMissing},
		{name: "the name is another target", s: clean(), v: Variant{Target: "prod"}, tagged: keyed(built(clean(), 0)), want: "build", reason: TargetDiffers},

		{name: "prebuilt, same content", s: noGit(), tagged: foreign(LabelContent + "=content"), want: "reuse"},
		{name: "prebuilt, same content, no other label", s: clean(), tagged: foreign(LabelContent + "=content"), want: "reuse"},
		{name: "prebuilt, same commit", s: clean(), tagged: foreign(commit, LabelDependencies+"=deps"), want: "reuse"},
		{name: "prebuilt, same commit, other content", s: clean(), tagged: foreign(commit, LabelDependencies+"=deps", LabelContent+"=x"), want: "build", reason: ContentChanged},
		{name: "prebuilt, same commit, no dependencies", s: clean(), tagged: foreign(commit), want: "build", reason: DependenciesMissing},
		{name: "prebuilt, dependencies not compared", cfg: func(b *config.BuildConfig) { b.Prebuilt.StalenessCheck.CheckDependencies = false }, s: clean(), tagged: foreign(commit), want: "reuse"},
		{name: "prebuilt, other dependencies", s: clean(), tagged: foreign(commit, LabelDependencies+"=x"), want: "build", reason: DependenciesChanged},
		{name: "prebuilt, commit is no proof", cfg: func(b *config.BuildConfig) { b.Prebuilt.StalenessCheck.CheckGitCommit = false }, s: clean(), tagged: foreign(commit, LabelDependencies+"=deps"), want: "build", reason: NotProven},
		{name: "prebuilt, same commit, dirty", cfg: func(b *config.BuildConfig) { b.StalenessDetection.OnDirtyWorkspace = "warn" }, s: dirty(), tagged: foreign(commit, LabelDependencies+"=deps"), want: "build", reason: NotProven, warns: true},
		{name: "prebuilt, other Dockerfile", s: noGit(), tagged: foreign(LabelContent+"=content", LabelDockerfile+"=x"), want: "build", reason: DockerfileChanged},
		{name: "prebuilt, for a target", s: noGit(), v: Variant{Target: "prod"}, tagged: foreign(LabelContent + "=content"), want: "build", reason: TargetDiffers},
		{name: "prebuilt, that target", s: noGit(), v: Variant{Target: "prod"}, tagged: foreign(LabelContent+"=content", LabelTarget+"=prod"), want: "reuse"},
		{name: "prebuilt, of a target, none asked", s: noGit(), tagged: foreign(LabelContent+"=content", LabelTarget+"=dev"), want: "build", reason: TargetDiffers},
		{name: "prebuilt, arguments", s: noGit(), v: Variant{Args: map[string]string{"A": "1"}}, tagged: foreign(LabelContent + "=content"), want: "build", reason: ArgsDiffer},
		{name: "prebuilt, these arguments", s: noGit(), v: Variant{Args: map[string]string{"A": "1"}}, tagged: foreign(LabelContent+"=content", LabelArgs+"="+ArgsHash(map[string]string{"A": "1"})), want: "reuse"},
		{name: "prebuilt, no labels", s: noGit(), tagged: foreign(), want: "build", reason: NotProven},
		{name: "prebuilt, no labels, on_stale fail", cfg: func(b *config.BuildConfig) { b.Prebuilt.StalenessCheck.OnStale = "fail" }, s: noGit(), tagged: foreign(), want: "refuse", reason: NotProven},
		{name: "prebuilt, no labels, on_stale warn", cfg: func(b *config.BuildConfig) { b.Prebuilt.StalenessCheck.OnStale = "warn" }, s: noGit(), tagged: foreign(), want: "build", reason: NotProven, warns: true},
		{name: "prebuilt, no labels, warn", cfg: func(b *config.BuildConfig) { b.Prebuilt.Validation = "warn" }, s: noGit(), tagged: foreign(), want: "reuse", reason: NotProven, warns: true},
		{name: "prebuilt, disabled", cfg: func(b *config.BuildConfig) { b.Prebuilt.Validation = "disabled" }, s: noGit(), tagged: foreign(LabelContent + "=content"), want: "build"},
		{name: "prebuilt, not enabled", cfg: func(b *config.BuildConfig) { b.Prebuilt.Enabled = false }, s: noGit(), tagged: foreign(LabelContent + "=content"), want: "build"},
		{name: "prebuilt, old", cfg: func(b *config.BuildConfig) { b.Prebuilt.StalenessCheck.CheckAgeThreshold = time.Minute }, s: noGit(), tagged: foreign(LabelContent + "=content"), want: "build", reason: ImageTooOld},
		{name: "prebuilt, of no age", s: noGit(), tagged: &Image{ID: "x", Labels: map[string]string{LabelContent: "content"}}, want: "build", reason: ImageTooOld},
		{name: "prebuilt, old, warn", cfg: func(b *config.BuildConfig) {
			b.Prebuilt.StalenessCheck.CheckAgeThreshold, b.Prebuilt.StalenessCheck.OnStale = time.Minute, "warn"
		}, s: noGit(), tagged: foreign(LabelContent + "=content"), want: "reuse", reason: ImageTooOld, warns: true},
	} {
		b := policy()
		if c.cfg != nil {
			c.cfg(&b)
		}
		d := Decide(b, c.s, c.v, c.cached, c.tagged, now)
		got := "build"
		switch {
		case d.Missing && d.Refused:
			got = "missing"
		case d.Refused:
			got = "refuse"
		case d.Reuse != nil:
			got = "reuse"
		}
		if got != c.want || c.reason != "" && !slices.Contains(d.Reasons, c.reason) || c.want == "reuse" && c.reason == "" && !d.Valid || c.warns != (len(d.Warnings) > 0) {
			t.Errorf("%s: %s, want %s for %q: %+v", c.name, got, c.want, c.reason, d.Verdict)
		}
	}
}

// TestNothingServesAnotherBuild tries every combination of settings on images
// that are certainly something else: only the explicit validation "warn" may
// serve one.
func TestNothingServesAnotherBuild(t *testing.T) {
	wrong := built(clean(), 0)
	wrong.Labels[LabelContent] = "another"
	prebuilt := foreign(LabelContent+"=another", LabelCommit+"="+strings.Repeat("a", 40), LabelDependencies+"=deps")
	n := 0
	for _, strategy := range []string{"smart", "git_commit", "content_hash"} {
		for _, validation := range []string{"strict", "disabled"} {
			for _, stale := range []string{"rebuild", "warn", "fail"} {
				for _, dirtyPolicy := range []string{"warn_and_rebuild", "rebuild", "warn", "fail"} {
					for bits := range 32 {
						b := policy()
						b.ImageCaching.Strategy, b.Prebuilt.Validation = strategy, validation
						b.Prebuilt.StalenessCheck.OnStale, b.StalenessDetection.OnStale, b.StalenessDetection.OnDirtyWorkspace = stale, stale, dirtyPolicy
						b.Prebuilt.StalenessCheck.CheckGitCommit, b.Prebuilt.StalenessCheck.CheckDependencies = bits&1 > 0, bits&2 > 0
						b.StalenessDetection.CheckGitCommit, b.StalenessDetection.CheckGitDirty, b.StalenessDetection.CheckDockerfile = bits&4 > 0, bits&8 > 0, bits&16 > 0
						for _, s := range []State{clean(), dirty(), noGit()} {
							for _, tagged := range []*Image{&wrong, prebuilt} {
								if d := Decide(b, s, Variant{}, nil, tagged, now); d.Reuse != nil {
									t.Fatalf("%s %s %s %s %b served %+v", strategy, validation, stale, dirtyPolicy, bits, tagged)
								}
								n++
							}
						}
					}
				}
			}
		}
	}
	t.Logf("%d combinations", n)
}

func TestValidate(t *testing.T) {
	b := policy()
	all := CacheChecks(b.StalenessDetection)
	derived := built(clean(), 0)
	derived.Inherited = true
	other := clean()
	other.Commit = strings.Repeat("b", 40)
	for _, c := range []struct {
		name   string
		cfg    func(b *config.BuildConfig)
		img    *Image
		s      State
		checks Checks
		want   []string
		rec    string
	}{
		{"missing", nil, nil, clean(), all, []string{ImageMissing}, Build},
		{"missing, fail", func(b *config.BuildConfig) { b.StalenessDetection.OnMissing = "fail" }, nil, clean(), all, []string{ImageMissing}, Fail},
		{"fits", nil, ptr(built(clean(), 0)), clean(), all, nil, Reuse},
		{"labels of another", nil, &derived, clean(), all, []string{NotProven}, Rebuild},
		{"commit", nil, ptr(built(clean(), 0)), other, all, []string{CommitMismatch}, Rebuild},
		{"commit, not asked", nil, ptr(built(clean(), 0)), other, Checks{MaxAge: time.Hour}, nil, Reuse},
		{"no label", nil, foreign(), clean(), all, []string{CommitMissing, DependenciesMissing}, Rebuild},
		{"no label, warn", func(b *config.BuildConfig) { b.Prebuilt.Validation = "warn" }, foreign(), clean(), all, []string{CommitMissing, DependenciesMissing}, Warn},
		{"age", nil, ptr(built(clean(), 2*time.Hour)), clean(), Checks{MaxAge: time.Hour}, []string{ImageTooOld}, Rebuild},
		{"age 0", nil, ptr(built(clean(), 0)), clean(), Checks{}, []string{ImageTooOld}, Rebuild},
		{"stale, fail", func(b *config.BuildConfig) { b.StalenessDetection.OnStale = "fail" }, ptr(built(clean(), 2*time.Hour)), clean(), Checks{MaxAge: time.Hour}, []string{ImageTooOld}, Fail},
		{"dirty", nil, ptr(built(dirty(), 0)), dirty(), all, []string{WorkspaceDirty}, Rebuild},
		{"dirty, warn", func(b *config.BuildConfig) { b.StalenessDetection.OnDirtyWorkspace = "warn" }, ptr(built(dirty(), 0)), dirty(), all, []string{WorkspaceDirty}, Warn},
		{"dirty, not asked", nil, ptr(built(dirty(), 0)), dirty(), Checks{MaxAge: time.Hour}, nil, Reuse},
		{"Dockerfile", nil, foreign(LabelContent+"=content", LabelDockerfile+"=x"), noGit(), all, []string{DockerfileChanged}, Rebuild},
		{"Dockerfile, not asked", nil, foreign(LabelContent+"=content", LabelDockerfile+"=x"), noGit(), Checks{MaxAge: 24 * time.Hour}, nil, Reuse},
		{"prebuilt disabled", func(b *config.BuildConfig) { b.Prebuilt.Enabled = false }, foreign(LabelContent + "=content"), noGit(), all, nil, Rebuild},
	} {
		b := policy()
		if c.cfg != nil {
			c.cfg(&b)
		}
		v := Validate(b, c.img, c.s, c.checks, now)
		if !slices.Equal(v.Reasons, c.want) || v.Recommendation != c.rec || v.Valid != (len(c.want) == 0) {
			t.Errorf("%s: %+v, want %v, %s", c.name, v, c.want, c.rec)
		}
	}
}

func ptr[T any](v T) *T { return &v }
