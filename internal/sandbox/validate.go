package sandbox

import (
	"context"
	"fmt"
	"math"
	"time"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/hostpath"
)

// ValidateWorkspaceConfig resolves a workspace's configuration and says
// everything that is wrong with it. It changes nothing and needs no backend.
func (s *Service) ValidateWorkspaceConfig(ctx context.Context, r ValidateWorkspaceConfigRequest) (*ValidateWorkspaceConfigResult, error) {
	root, err := s.workspaceRoot(r.WorkspaceRoot)
	if err != nil {
		return nil, err
	}
	res := s.resolveConfig(root, r.Overrides)
	out := &ValidateWorkspaceConfigResult{
		WorkspaceRoot: root,
		WorkspaceID:   hostpath.WorkspaceID(root),
		Sources:       res.Sources,
		Config:        res.Tree,
		Valid:         res.Valid(),
		Diagnostics:   make([]Diagnostic, len(res.Diagnostics)),
	}
	for i, d := range res.Diagnostics {
		out.Diagnostics[i] = Diagnostic(d)
	}
	return out, nil
}

func (s *Service) workspaceRoot(path string) (string, error) {
	return hostpath.CheckWorkspaceRoot(path, hostpath.RootRules{
		UserHome:       s.settings.UserHome,
		StateHome:      s.settings.Home,
		WorkspaceRoots: s.settings.WorkspaceRoots,
	})
}

func (s *Service) resolveConfig(root string, overrides map[string]any) *config.Resolved {
	return config.Load(config.Input{
		UserHome:      s.settings.UserHome,
		ConfigHome:    s.settings.ConfigHome,
		WorkspaceRoot: root,
		Overrides:     overrides,
		Backend:       s.backendHint(),
	})
}

// backendHint names the backend for diagnostics about keys that it ignores:
// the one that was selected, or the only one of this platform.
func (s *Service) backendHint() string {
	if sel, ok := s.selection.peek(); ok {
		return sel.Backend.Name()
	}
	if s.settings.Backend != "auto" {
		return s.settings.Backend
	}
	if all := s.backends.All(); len(all) > 0 {
		return all[0].Name()
	}
	return ""
}

// leaseTTL is how long a new lease lives: what was asked, within the maximum.
func (s *Service) leaseTTL(asked *float64) (time.Duration, error) {
	if asked == nil {
		return s.settings.DefaultTTL, nil
	}
	d, err := minutes(*asked)
	if err != nil {
		return 0, err
	}
	return min(d, s.settings.MaxTTL), nil
}

// ttlWarning says that a lease ends sooner than was asked.
func (s *Service) ttlWarning(asked *float64, ends time.Time) []string {
	if asked == nil || *asked <= s.settings.MaxTTL.Minutes() {
		return nil
	}
	return []string{fmt.Sprintf("ttl_minutes %v is above MAX_TTL_MINUTES (%v): it ends at %s", *asked, s.settings.MaxTTL.Minutes(), isoTime(ends))}
}

// minutes turns a client's number into a duration. What is absurdly long is
// still a duration: the caller cuts it to the maximum.
func minutes(v float64) (time.Duration, error) {
	if math.IsNaN(v) || v <= 0 {
		return 0, fault.New(fault.TTLInvalid, "ttl_minutes is %v; it must be more than 0", v).
			Next("pass a positive number of minutes")
	}
	if v > float64(math.MaxInt64/int64(time.Minute))/2 {
		return math.MaxInt64 / 2, nil
	}
	d := time.Duration(v * float64(time.Minute))
	if d < time.Second {
		return 0, fault.New(fault.TTLInvalid, "ttl_minutes is %v; it must be at least one second", v).
			Next("pass a positive number of minutes")
	}
	return d, nil
}
