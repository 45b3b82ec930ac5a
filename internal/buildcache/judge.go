package buildcache

import (
	"fmt"
	"slices"
	"time"

	"sandboxforge/internal/config"
)

// Why an image does not stand for a tree. The names are the tool contract.
const (
	ImageMissing        = "image_missing"
	CommitMismatch      = "git_commit_mismatch"
	CommitMissing       = "git_commit_missing_in_image_labels"
	DependenciesChanged = "dependencies_changed"
	DependenciesMissing = "dependencies_hash_missing_in_image_labels"
	ImageTooOld         = "image_too_old"
	WorkspaceDirty      = "workspace_has_uncommitted_changes"
	DockerfileChanged   = "dockerfile_changed"
	ContentChanged      = "content_changed"
	TargetDiffers       = "target_differs"
	ArgsDiffer          = "build_args_differ"
	NotProven           = "not_proven_by_labels"
)

// What to do about it, the mildest first. The names are the tool contract.
const (
	Reuse   = "reuse"
	Warn    = "warn"
	Rebuild = "rebuild"
	Build   = "build" // there is none yet
	Fail    = "fail"
)

// Image is an image that exists, as the engine describes it.
type Image struct {
	ID      string
	Created time.Time
	Labels  map[string]string
	// Inherited: the labels are those of a build that did not make this image.
	Inherited bool
}

// Age is the time since it was built, as its label or else the engine says;
// never negative. ok is false where neither does.
func (i Image) Age(now time.Time) (age time.Duration, ok bool) {
	built, err := time.Parse(time.RFC3339, i.Labels[LabelTime])
	if err != nil {
		built = i.Created
	}
	// The engine gives the year 1 to an image without a time.
	return max(0, now.Sub(built)), built.Year() > 1
}

// Checks says what is compared.
type Checks struct {
	Commit, Dirty, Dependencies, Dockerfile bool
	MaxAge                                  time.Duration
}

// CacheChecks is what staleness_detection asks of an image that was built here.
func CacheChecks(c config.StalenessConfig) Checks {
	return Checks{Commit: c.CheckGitCommit, Dirty: c.CheckGitDirty, Dependencies: len(c.CheckDependencies) > 0, Dockerfile: c.CheckDockerfile, MaxAge: c.MaxAgeThreshold}
}

// PrebuiltChecks is what is asked of an image from elsewhere.
func PrebuiltChecks(b config.BuildConfig) Checks {
	p := b.Prebuilt.StalenessCheck
	return Checks{
		Commit: p.CheckGitCommit, Dirty: b.StalenessDetection.CheckGitDirty, Dependencies: p.CheckDependencies,
		Dockerfile: b.StalenessDetection.CheckDockerfile, MaxAge: p.CheckAgeThreshold,
	}
}

// Judge compares an image's labels with a tree and lists what does not fit.
// What the tree itself does not tell, such as a commit, is not compared.
func Judge(img Image, s State, c Checks, now time.Time) (reasons []string) {
	differs := func(want, have, missing, changed string) {
		switch {
		case want == "" && have == "", want == have:
		case have == "":
			if missing != "" {
				reasons = append(reasons, missing)
			}
		default:
			reasons = append(reasons, changed)
		}
	}
	l := img.Labels
	if c.Commit && s.Commit != "" {
		differs(s.Commit, l[LabelCommit], CommitMissing, CommitMismatch)
	}
	if c.Dependencies {
		differs(s.Dependencies, l[LabelDependencies], DependenciesMissing, DependenciesChanged)
	}
	if c.Dockerfile {
		differs(s.Dockerfile, l[LabelDockerfile], "", DockerfileChanged)
	}
	differs(s.Content, l[LabelContent], "", ContentChanged)
	if age, ok := img.Age(now); !ok || age >= c.MaxAge {
		reasons = append(reasons, ImageTooOld)
	}
	if c.Dirty && s.Dirty != nil && *s.Dirty {
		reasons = append(reasons, WorkspaceDirty)
	}
	return reasons
}

// judgePrebuilt is Judge for an image from elsewhere: where its content is the
// tree's, commit and dependencies say nothing more.
func judgePrebuilt(img Image, s State, c Checks, now time.Time) []string {
	if l := img.Labels[LabelContent]; l != "" && l == s.Content {
		c.Commit, c.Dependencies = false, false
	}
	return Judge(img, s, c, now)
}

// unproven lists what keeps an image's labels from proving that it is what the
// build would make: its content is the tree's, or its commit is and the tree is
// clean; and Dockerfile, target and arguments are the same.
func unproven(img Image, s State, v Variant, c Checks) (reasons []string) {
	l := img.Labels
	switch content := l[LabelContent]; {
	case content != "":
		if content != s.Content {
			reasons = append(reasons, ContentChanged)
		}
	case c.Commit && s.Clean() && l[LabelCommit] == s.Commit:
	default:
		reasons = append(reasons, NotProven)
	}
	if h := l[LabelDockerfile]; h != "" && h != s.Dockerfile {
		reasons = append(reasons, DockerfileChanged)
	}
	return append(reasons, differing(img, v)...)
}

// differing lists how an image is another variant.
func differing(img Image, v Variant) (reasons []string) {
	if img.Labels[LabelTarget] != v.Target {
		reasons = append(reasons, TargetDiffers)
	}
	if img.Labels[LabelArgs] != ArgsHash(v.Args) {
		reasons = append(reasons, ArgsDiffer)
	}
	return reasons
}

func merge(a, b []string) []string {
	for _, r := range b {
		if !slices.Contains(a, r) {
			a = append(a, r)
		}
	}
	return a
}

// Verdict is what a judgement comes to.
type Verdict struct {
	Valid          bool // nothing is wrong with the image
	Reasons        []string
	Warnings       []string
	Recommendation string
}

// conclude settles reasons by their policies; the severest wins.
func conclude(reasons []string, onStale, onDirty string) Verdict {
	v := Verdict{Valid: len(reasons) == 0, Reasons: reasons, Recommendation: Reuse}
	for _, r := range reasons {
		do := onStale
		if r == WorkspaceDirty {
			do = onDirty
		}
		if do == "warn_and_rebuild" {
			v.Warnings = append(v.Warnings, "the workspace has uncommitted changes")
			do = Rebuild
		}
		if severity(do) > severity(v.Recommendation) {
			v.Recommendation = do
		}
	}
	return v
}

func severity(recommendation string) int {
	return map[string]int{Reuse: 0, Warn: 1, Rebuild: 2, Build: 2, Fail: 3}[recommendation]
}

// Validate judges an image for validate_image; nil is one that does not exist.
// Checks says what the caller wants compared.
func Validate(b config.BuildConfig, img *Image, s State, c Checks, now time.Time) Verdict {
	st := b.StalenessDetection
	if img == nil {
		return Verdict{Reasons: []string{ImageMissing}, Recommendation: st.OnMissing}
	}
	if img.Labels[LabelKey] != "" {
		reasons := Judge(*img, s, c, now)
		if img.Inherited {
			reasons = append(reasons, NotProven)
		}
		return conclude(reasons, st.OnStale, st.OnDirtyWorkspace)
	}
	p := b.Prebuilt
	onStale := p.StalenessCheck.OnStale
	if p.Validation == "warn" {
		onStale = Warn
	}
	v := conclude(judgePrebuilt(*img, s, c, now), onStale, st.OnDirtyWorkspace)
	if v.Valid && img.Labels[LabelContent] == "" {
		if c.Commit && s.Clean() {
			v.Warnings = append(v.Warnings, "the image says nothing about its content; it is judged by its commit alone")
		} else {
			v.Warnings = append(v.Warnings, "the image's labels do not prove what it was built from")
		}
	}
	if !p.Enabled || p.Validation == "disabled" {
		v.Warnings = append(v.Warnings, "docker_build does not reuse images from elsewhere: build.prebuilt is disabled")
		if severity(v.Recommendation) < severity(Rebuild) {
			v.Recommendation = Rebuild
		}
	}
	return v
}

// Decision is what docker_build does.
type Decision struct {
	Verdict
	Reuse  *Image // the image to serve; nil to build
	Judged *Image // the image that the verdict is about; nil if there is none
	// Refused: neither served nor built. Missing says that there is no image.
	Refused, Missing bool
}

// Decide settles a build: cached are the images that were built here with the
// same key, none if images are not cached; tagged is the image that has the
// asked name now, nil if there is none.
func Decide(b config.BuildConfig, s State, v Variant, cached []Image, tagged *Image, now time.Time) Decision {
	st := b.StalenessDetection
	dirty := st.CheckGitDirty && s.Dirty != nil && *s.Dirty
	var d Decision
	switch {
	case len(cached) > 0:
		for i := range cached {
			c := cachedVerdict(b, cached[i], s, now)
			if i == 0 || severity(c.Recommendation) < severity(d.Recommendation) {
				d.Judged, d.Verdict = &cached[i], c
			}
		}
	case tagged != nil && tagged.Labels[LabelKey] == "" && b.Prebuilt.Enabled && b.Prebuilt.Validation != "disabled":
		d.Judged = tagged
		d.Verdict = prebuiltVerdict(b, *tagged, s, v, now)
	case tagged != nil:
		// It was built from something else: it is no candidate, and what is
		// said about it is for the reader.
		d.Judged = tagged
		d.Verdict = conclude(merge(Judge(*tagged, s, CacheChecks(st), now), differing(*tagged, v)), Rebuild, st.OnDirtyWorkspace)
		d.Recommendation = atLeast(d.Recommendation, Rebuild)
	default:
		d.Verdict = Verdict{Reasons: []string{ImageMissing}, Recommendation: st.OnMissing}
		if dirty {
			d.Verdict = conclude([]string{WorkspaceDirty}, Rebuild, st.OnDirtyWorkspace)
			d.Reasons = []string{ImageMissing, WorkspaceDirty}
			d.Recommendation = atLeast(d.Recommendation, st.OnMissing)
		}
		if st.OnMissing == Warn {
			d.Warnings = append(d.Warnings, "there is no such image yet")
		}
		d.Refused = d.Recommendation == Fail
		d.Missing = st.OnMissing == Fail
		return d
	}
	if dirty && st.OnDirtyWorkspace == Warn {
		d.Warnings = append(d.Warnings, "the workspace has uncommitted changes")
	}
	switch d.Recommendation {
	case Reuse, Warn:
		d.Reuse = d.Judged
	case Fail:
		d.Refused = true
	}
	return d
}

func atLeast(a, b string) string {
	if severity(b) > severity(a) {
		return b
	}
	return a
}

// cachedVerdict judges an image with the build's own key: its content is
// right, and only git and its age can speak against it.
func cachedVerdict(b config.BuildConfig, img Image, s State, now time.Time) Verdict {
	c := CacheChecks(b.StalenessDetection)
	c.Dependencies, c.Dockerfile = false, false // the key has them
	byCommit := b.ImageCaching.Strategy == "git_commit"
	if byCommit || b.ImageCaching.Strategy == "content_hash" {
		c.Commit = byCommit
	}
	v := conclude(Judge(img, s, c, now), b.StalenessDetection.OnStale, b.StalenessDetection.OnDirtyWorkspace)
	if byCommit && (!s.Clean() || img.Labels[LabelCommit] != s.Commit) {
		// Images stand for commits, and this tree is none.
		v.Valid = false
		if s.Commit == "" {
			v.Warnings = append(v.Warnings, "the strategy git_commit reuses nothing where there is no git information; sync.include_git sends it, or use the strategy smart")
		}
		v.Recommendation = atLeast(v.Recommendation, Rebuild)
	}
	v.Warnings = append(v.Warnings, staleWarning(v, b.StalenessDetection.MaxAgeThreshold)...)
	return v
}

// prebuiltVerdict judges an image from elsewhere that has the asked name.
func prebuiltVerdict(b config.BuildConfig, img Image, s State, v Variant, now time.Time) Verdict {
	c := PrebuiltChecks(b)
	p := b.Prebuilt
	onDirty := b.StalenessDetection.OnDirtyWorkspace
	reasons := merge(judgePrebuilt(img, s, c, now), unproven(img, s, v, c))
	if p.Validation == "warn" {
		out := conclude(reasons, Warn, onDirty)
		for _, r := range reasons {
			if r != WorkspaceDirty {
				out.Warnings = append(out.Warnings, "the existing image is used all the same: "+r)
			}
		}
		return out
	}
	out := conclude(reasons, p.StalenessCheck.OnStale, onDirty)
	out.Warnings = append(out.Warnings, staleWarning(out, p.StalenessCheck.CheckAgeThreshold)...)
	// Only its age may be overlooked; a doubt about what is in it may not.
	for _, r := range reasons {
		if r != ImageTooOld && r != WorkspaceDirty && out.Recommendation == Warn {
			out.Warnings = append(out.Warnings, "the existing image does not prove that it is what would be built ("+r+"), so it is built anew")
			out.Recommendation = Rebuild
		}
	}
	return out
}

func staleWarning(v Verdict, limit time.Duration) []string {
	if v.Recommendation != Warn {
		return nil
	}
	var list []string
	for _, r := range v.Reasons {
		switch r {
		case ImageTooOld:
			list = append(list, fmt.Sprintf("the image is older than %v", limit))
		case WorkspaceDirty:
		default:
			list = append(list, "the existing image is used all the same: "+r)
		}
	}
	return list
}
