package buildcache

import (
	"regexp"
	"strings"

	"sandboxforge/internal/config"
)

// Variant is what tells builds of one tree apart.
type Variant struct {
	Target     string
	Args       map[string]string
	Dockerfile string // as the caller named it; "" is the usual one
}

func (v Variant) hash() string {
	if v.Target == "" && len(v.Args) == 0 && v.Dockerfile == "" {
		return ""
	}
	d := newDigest("variant")
	d.add(v.Target, v.Dockerfile)
	d.pairs(v.Args)
	return d.sum()
}

var notInTag = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

const maxTag = 128 // bytes, Docker's bound

// CachedTag is the reference under which a build is kept: tag_format with its
// placeholders replaced. Where that alone would give two different builds one
// name, it gets a part of the content's hash (the tree is no clean commit, or
// the strategy is content_hash) and one of the variant's.
func CachedTag(cfg config.ImageCachingConfig, image string, s State, v Variant) string {
	deps := clip(s.Dependencies, 12)
	if deps == "" {
		deps = "nodeps"
	}
	short := s.Short()
	if short == "" {
		short = "nogit"
	}
	ref := strings.NewReplacer("{image}", Repository(image), "{git_short}", short, "{deps_hash}", deps, "{content_hash}", clip(s.Content, 12)).Replace(cfg.TagFormat)
	repo, tag := splitTag(ref)
	var parts []string
	if tag != "" {
		parts = append(parts, tag)
	}
	byContent := cfg.Strategy == "content_hash" || !s.Clean() || !strings.Contains(cfg.TagFormat, "{git_short}")
	if byContent && !strings.Contains(cfg.TagFormat, "{content_hash}") {
		parts = append(parts, clip(s.Content, 12))
	}
	if h := v.hash(); h != "" {
		parts = append(parts, clip(h, 8))
	}
	if len(parts) == 0 {
		parts = append(parts, "latest")
	}
	// The end tells builds apart, so the beginning is what gets cut.
	tag = notInTag.ReplaceAllString(strings.Join(parts, "-"), "-")
	tag = strings.TrimLeft(tag[max(0, len(tag)-maxTag):], ".-")
	if ref = repo + ":" + tag; !config.IsImageReference(ref) {
		ref = Repository(image) + ":" + clip(s.Content, 12)
	}
	return ref
}

// Repository is a reference without tag and digest.
func Repository(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	repo, _ := splitTag(ref)
	return repo
}

func splitTag(ref string) (repo, tag string) {
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		return ref[:i], ref[i+1:]
	}
	return ref, ""
}
