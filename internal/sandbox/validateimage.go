package sandbox

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"time"

	"sandboxforge/internal/buildcache"
	"sandboxforge/internal/docker"
	"sandboxforge/internal/fault"
)

// ValidateImage judges whether an image stands for the workspace as it is in
// the guest. It changes nothing.
func (s *Service) ValidateImage(ctx context.Context, r ValidateImageRequest) (*ValidateImageResult, error) {
	if err := checkImageName("image_name", r.ImageName); err != nil {
		return nil, err
	}
	d, err := s.docker(ctx, r.InstanceID)
	if err != nil {
		return nil, err
	}
	defer d.close()
	if r.WorkspaceRoot != "" && filepath.Clean(r.WorkspaceRoot) != d.lease.WorkspaceRoot {
		return nil, fault.New(fault.InvalidArgument, "workspace_root is %s, and instance %s is bound to %s", r.WorkspaceRoot, d.lease.InstanceID, d.lease.WorkspaceRoot).
			With("instance_id", d.lease.InstanceID).
			Next("leave workspace_root out, or name an instance of that workspace")
	}
	t, err := d.buildTree(ctx, r.ContextPath, r.Dockerfile, r.Dockerfile != "")
	if err != nil {
		return nil, err
	}
	img, err := d.imageAt(ctx, r.ImageName)
	if err != nil {
		return nil, err
	}
	checks := buildcache.CacheChecks(d.config.Build.StalenessDetection)
	if img != nil && img.Labels[buildcache.LabelKey] == "" {
		checks = buildcache.PrebuiltChecks(d.config.Build)
	}
	if c := r.Checks; c != nil {
		checks.Commit = orDefault(c.GitCommit, checks.Commit)
		checks.Dirty = orDefault(c.GitDirty, checks.Dirty)
		checks.Dependencies = orDefault(c.Dependencies, checks.Dependencies)
		if h := c.MaxAgeHours; h != nil {
			if !(*h >= 0) {
				return nil, fault.New(fault.InvalidArgument, "checks.max_age_hours is %v; it must be 0 or more", *h)
			}
			checks.MaxAge = time.Duration(min(*h*float64(time.Hour), float64(math.MaxInt64/2)))
		}
	}
	if img != nil {
		if img.Inherited, err = d.inherited(ctx, img); err != nil {
			return nil, err
		}
	}
	now := s.now()
	verdict := buildcache.Validate(d.config.Build, img, t.state, checks, now)
	if len(t.unreadable) > 0 {
		verdict.Warnings = append(verdict.Warnings, "files of the context could not be read: "+clipText(t.unreadable[0], 200))
	}
	return &ValidateImageResult{
		InstanceID: d.lease.InstanceID, BuildValidation: validation(verdict, r.ImageName, img, now), WorkspaceState: workspaceState(t.state),
		ExpectedImageTag: buildcache.CachedTag(d.config.Build.ImageCaching, r.ImageName, t.state, t.variant(DockerBuildRequest{})),
	}, nil
}

// imageAt describes the image that has a name, nil if there is none.
func (d *dockerCall) imageAt(ctx context.Context, ref string) (*buildcache.Image, error) {
	i, err := d.engine.Image(ctx, ref)
	if errors.Is(err, docker.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, d.engineFault(ctx, "looking for the image "+ref, err)
	}
	return &buildcache.Image{ID: i.ID, Created: i.Created, Labels: i.Labels}, nil
}

// inherited reports whether an image has the label of a build that did not make
// it.
func (d *dockerCall) inherited(ctx context.Context, img *buildcache.Image) (bool, error) {
	key := img.Labels[buildcache.LabelKey]
	if key == "" {
		return false, nil
	}
	if !buildcache.IsKey(key) {
		return true, nil
	}
	ids, err := d.recordedIDs(ctx, key)
	return !slices.Contains(ids, img.ID), err
}

// validation is a verdict as clients see it.
func validation(v buildcache.Verdict, name string, img *buildcache.Image, now time.Time) BuildValidation {
	return BuildValidation{
		Valid: v.Valid, Reasons: orEmpty(v.Reasons), Warnings: orEmpty(v.Warnings), Recommendation: v.Recommendation,
		ImageMetadata: imageMetadata(name, img, now),
	}
}

func imageMetadata(name string, img *buildcache.Image, now time.Time) *ImageMetadata {
	if img == nil {
		return nil
	}
	label := func(k string) *string { return known(clipText(img.Labels[k], maxLabelBytes)) }
	m := &ImageMetadata{
		ImageName: name, ImageID: img.ID, GitCommit: label(buildcache.LabelCommit), GitBranch: label(buildcache.LabelBranch),
		BuildTimestamp: label(buildcache.LabelTime), DependenciesHash: label(buildcache.LabelDependencies),
		Labels: clipLabels(img.Labels),
	}
	if age, ok := img.Age(now); ok {
		hours := math.Round(age.Hours()*1000) / 1000
		m.AgeHours = &hours
	}
	return m
}
