package sandbox

import (
	"context"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/template"
)

// WarmTemplateRequest asks for the template of a kind of VM. Zero values are
// the workspace's, without one the operator's defaults.
type WarmTemplateRequest struct {
	WorkspaceRoot string // absolute, or ""
	Image         string
	CPUs          int
	MemoryGiB     float64
	DiskGiB       float64 // a template fits VMs whose disks are as large or larger
}

// TemplateInfo is a template as the operator sees it.
type TemplateInfo struct {
	template.Info
	InUse int `json:"in_use"` // VMs and saved states that need it
}

// WarmTemplateResult says what there is now.
type WarmTemplateResult struct {
	Template   TemplateInfo `json:"template"`
	Made       bool         `json:"made"` // false: it was there
	DurationMS int64        `json:"duration_ms"`
}

// ListTemplatesResult lists the most recently used first.
type ListTemplatesResult struct {
	Dir        string         `json:"dir"`
	CapBytes   int64          `json:"cap_bytes"`
	TotalBytes int64          `json:"total_bytes"`
	Templates  []TemplateInfo `json:"templates"`
}

// WarmTemplate makes the template of a kind of VM ahead of the first create
// that needs it, also if a recent try failed. Where the configuration has
// services it makes the one in which they run too, and returns that. Where the backend has no
// templates the fault is UNSUPPORTED_BY_BACKEND.
func (s *Service) WarmTemplate(ctx context.Context, r WarmTemplateRequest) (*WarmTemplateResult, error) {
	began := s.now()
	vm := map[string]any{}
	if r.Image != "" {
		vm["image"] = r.Image
	}
	if r.CPUs != 0 {
		vm["cpus"] = float64(r.CPUs)
	}
	if r.MemoryGiB != 0 {
		vm["memory_gib"] = r.MemoryGiB
	}
	if r.DiskGiB != 0 {
		vm["disk_gib"] = r.DiskGiB
	}
	root := ""
	if r.WorkspaceRoot != "" {
		var err error
		if root, err = s.workspaceRoot(r.WorkspaceRoot); err != nil {
			return nil, err
		}
	}
	report(ctx, Progress{Stage: "backend", Message: "checking the hypervisor"})
	sel, err := s.selectBackend(ctx)
	if err != nil {
		return nil, err
	}
	res := s.resolveConfig(root, map[string]any{"vm": vm})
	if err := res.Err(); err != nil {
		return nil, err
	}
	st := s.templateStore(sel)
	if st == nil {
		e := fault.New(fault.UnsupportedByBackend, "the %s backend makes no templates here", sel.Backend.Name())
		if !s.settings.Templates {
			return nil, e.Because("SANDBOX_TEMPLATES is off").Next("unset SANDBOX_TEMPLATES")
		}
		return nil, e.Because("it cannot start VMs in a saved state").Next("instances boot as before; nothing needs to be done")
	}
	// Without a workspace the operator's defaults may have services too.
	p := preparation{}
	if s.settings.PreparedTemplates {
		if p, err = preparationOf(res.Config); err != nil {
			return nil, err
		}
	}
	t, made, err := s.findTemplate(ctx, st, sel, vmSpec(res.Config.VM), preparation{}, true, nil)
	if err != nil {
		return nil, err
	}
	if !p.empty() {
		madeToo := false
		if t, madeToo, err = s.findTemplate(ctx, st, sel, vmSpec(res.Config.VM), p, true, nil); err != nil {
			return nil, err
		}
		made = made || madeToo
	}
	out := &WarmTemplateResult{Made: made, DurationMS: s.now().Sub(began).Milliseconds()}
	all, err := st.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, i := range all {
		if i.State == t.State {
			out.Template = infoOf(i)
		}
	}
	return out, nil
}

func infoOf(i template.Info) TemplateInfo { return TemplateInfo{i, len(i.Users)} }

// keptTemplates is the store of templates, whether or not new VMs use it.
func (s *Service) keptTemplates() (*template.Store, error) {
	for _, b := range s.backends.All() {
		if keeper, ok := b.(backend.StateKeeper); ok {
			return s.templatesOf(keeper), nil
		}
	}
	return nil, fault.New(fault.UnsupportedByBackend, "no backend of this platform has templates").
		Next("instances boot as before; nothing needs to be done")
}

// ListTemplates lists the templates there are, and the files of former ones.
func (s *Service) ListTemplates(ctx context.Context) (*ListTemplatesResult, error) {
	st, err := s.keptTemplates()
	if err != nil {
		return nil, err
	}
	all, err := st.List(ctx)
	if err != nil {
		return nil, err
	}
	out := &ListTemplatesResult{Dir: st.Dir, CapBytes: st.CapBytes, Templates: []TemplateInfo{}}
	for _, i := range all {
		out.TotalBytes += i.Bytes
		out.Templates = append(out.Templates, infoOf(i))
	}
	return out, nil
}

// RemoveTemplate removes the one template whose key begins with prefix. One
// that VMs need is refused.
func (s *Service) RemoveTemplate(ctx context.Context, prefix string) (*TemplateInfo, error) {
	st, err := s.keptTemplates()
	if err != nil {
		return nil, err
	}
	i, err := st.Remove(ctx, prefix)
	if err != nil {
		return nil, err
	}
	s.record(ctx, "template_remove", "", "", nil, map[string]any{"key": i.Key})
	info := infoOf(i)
	return &info, nil
}

// RemoveUnfitTemplates removes templates that cannot be used any more, for
// example because their image was removed, and returns those.
func (s *Service) RemoveUnfitTemplates(ctx context.Context) ([]TemplateInfo, error) {
	removed := []TemplateInfo{}
	st, err := s.keptTemplates()
	if fault.Is(err, fault.UnsupportedByBackend) {
		return removed, nil
	}
	if err != nil {
		return nil, err
	}
	gone, err := st.RemoveUnfit(ctx)
	for _, i := range gone {
		removed = append(removed, infoOf(i))
	}
	return removed, err
}
