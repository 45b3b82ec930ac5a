package docker

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
)

// PruneMode says how much Prune removes.
type PruneMode string

// The modes. What has KeepLabel, and what a container uses, stays in either.
const (
	// PruneSafe removes what can be made again from what stays: images without
	// a name and build cache that no image uses.
	PruneSafe PruneMode = "safe"
	// PruneAggressive also removes containers that do not run, networks and
	// images that no container uses, all build cache, and volumes without a
	// name.
	PruneAggressive PruneMode = "aggressive"
)

// Prune removes what is not in use and returns how many bytes that freed. It
// goes on after a failed step and returns the first error. When ctx ends, what
// was removed stays removed.
func (e *Engine) Prune(ctx context.Context, mode PruneMode) (reclaimed int64, err error) {
	kept := url.Values{"filters": {encode(map[string][]string{"label!": {KeepLabel}})}}
	images := func(dangling string) url.Values {
		return url.Values{"filters": {encode(map[string][]string{"dangling": {dangling}, "label!": {KeepLabel}})}}
	}
	type step struct {
		path  string
		query url.Values
	}
	var steps []step
	switch mode {
	case PruneSafe:
		steps = []step{{"/images/prune", images("true")}, {"/build/prune", nil}}
	case PruneAggressive:
		// Containers first: what they used is unused then.
		steps = []step{
			{"/containers/prune", kept}, {"/networks/prune", kept}, {"/images/prune", images("false")},
			{"/volumes/prune", kept}, {"/build/prune", url.Values{"all": {"1"}}},
		}
	default:
		return 0, fmt.Errorf("prune mode %q", mode)
	}
	for _, s := range steps {
		var r struct{ SpaceReclaimed int64 }
		if serr := e.do(ctx, http.MethodPost, s.path+"?"+s.query.Encode(), nil, &r); serr != nil && err == nil {
			err = serr
		}
		// More than there can be, several times over, is still a number.
		reclaimed += min(max(0, r.SpaceReclaimed), math.MaxInt64/int64(len(steps)))
		if ctx.Err() != nil {
			return reclaimed, context.Cause(ctx)
		}
	}
	return reclaimed, err
}
