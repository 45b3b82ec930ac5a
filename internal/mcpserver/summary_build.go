package mcpserver

import (
	"fmt"
	"strings"

	"sandboxforge/internal/sandbox"
)

func textDockerBuild(r *sandbox.DockerBuildResult) string {
	var b strings.Builder
	if r.CacheHit {
		fmt.Fprintf(&b, "%s is there already and stands for this context (%.19s); nothing was built.", r.ImageTag, r.ImageID)
	} else {
		fmt.Fprintf(&b, "Built %s (%.19s) in %d ms.", r.ImageTag, r.ImageID, r.DurationMS)
	}
	if r.CachedImageTag != nil {
		fmt.Fprintf(&b, " Also named %s.", *r.CachedImageTag)
	}
	if v := r.Validation; v != nil && !r.CacheHit && v.ImageMetadata != nil {
		fmt.Fprintf(&b, " The image that was there before did not fit: %s.", strings.Join(v.Reasons, ", "))
	}
	warnings(&b, r.Warnings)
	streams(&b, r.CommandResult)
	return b.String()
}

func textValidateImage(r *sandbox.ValidateImageResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Valid: %t; recommendation: %s.", r.Valid, r.Recommendation)
	if len(r.Reasons) > 0 {
		fmt.Fprintf(&b, " Reasons: %s.", strings.Join(r.Reasons, ", "))
	}
	fmt.Fprintf(&b, " An image of this state would be kept as %s.", r.ExpectedImageTag)
	warnings(&b, r.Warnings)
	return b.String()
}
