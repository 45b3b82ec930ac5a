package sandbox

import (
	"context"
	"errors"
	"os"
	"strings"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/hostpath"
	"sandboxforge/internal/store"
	"sandboxforge/internal/workspace"
)

// defaultArtifactBytes bounds one collection unless the caller says more.
const defaultArtifactBytes = 1 << 30

// local resolves a host path that a caller named. Relative ones are taken from
// the workspace root.
func (s *Service) local(l store.Lease, path string) (hostpath.Location, error) {
	return hostpath.Policy{WorkspaceRoot: l.WorkspaceRoot, AllowedRoots: s.settings.AllowedRoots}.Resolve(path)
}

// leaseConfig is the configuration as it is now; the workspace's file may have
// changed since the instance was made.
func (s *Service) leaseConfig(l store.Lease) (config.Config, error) {
	res := s.resolveConfig(l.WorkspaceRoot, specOf(l).overrides())
	return res.Config, res.Err()
}

// transfer reports a stage of the sync engine as progress.
func transfer(ctx context.Context) workspace.Progress {
	return func(stage string, done, total int64) {
		unit := "files"
		if stage == "send" || stage == "receive" {
			unit = "bytes"
		}
		report(ctx, Progress{Stage: stage, Message: counted(done, total, unit), Done: float64(done), Total: float64(total)})
	}
}

// CopyToInstance copies a file or a tree from the host into the guest.
func (s *Service) CopyToInstance(ctx context.Context, r CopyRequest) (*CopyResult, error) {
	return s.copy(ctx, "copy_to_instance", r, workspace.CopyTo)
}

// CopyFromInstance copies a file or a tree from the guest to the host.
func (s *Service) CopyFromInstance(ctx context.Context, r CopyRequest) (*CopyResult, error) {
	return s.copy(ctx, "copy_from_instance", r, workspace.CopyFrom)
}

func (s *Service) copy(ctx context.Context, tool string, r CopyRequest, do func(context.Context, workspace.CopyRequest) (*workspace.CopyResult, error)) (*CopyResult, error) {
	if r.LocalPath == "" || r.RemotePath == "" {
		return nil, fault.New(fault.InvalidArgument, "local_path and remote_path must both be given")
	}
	if err := checkGuestPath("remote_path", r.RemotePath); err != nil {
		return nil, err
	}
	l, g, err := s.live(ctx, r.InstanceID)
	if err != nil {
		return nil, err
	}
	loc, err := s.local(l, r.LocalPath)
	if err != nil {
		return nil, err
	}
	cfg, err := s.leaseConfig(l)
	if err != nil {
		return nil, err
	}
	res, err := do(ctx, workspace.CopyRequest{
		Guest: workspace.FromClient(g), Local: loc, Remote: guestPath(l, r.RemotePath),
		LocalIsDir:  strings.HasSuffix(r.LocalPath, "/") || strings.HasSuffix(r.LocalPath, string(os.PathSeparator)),
		RemoteIsDir: strings.HasSuffix(r.RemotePath, "/"),
		Trust:       hostpath.NewTrust(cfg.Sync.AllowRefused), Progress: transfer(ctx),
	})
	err = s.fileFault(ctx, l, tool, err)
	s.record(ctx, tool, r.InstanceID, "", err, map[string]any{"local_path": r.LocalPath, "remote_path": r.RemotePath})
	if err != nil {
		return nil, err
	}
	return &CopyResult{
		InstanceID: l.InstanceID, LocalPath: res.LocalPath, RemotePath: res.RemotePath, Bytes: res.Bytes, Files: res.Files,
		Refused: refusals(res.Refused, res.Skipped), Status: res.Status,
	}, nil
}

// SyncWorkspaceToInstance brings the guest's copy of the workspace up to date.
func (s *Service) SyncWorkspaceToInstance(ctx context.Context, r SyncToInstanceRequest) (*SyncToInstanceResult, error) {
	l, g, err := s.bound(ctx, r.InstanceID)
	if err != nil {
		return nil, err
	}
	cfg, err := s.leaseConfig(l)
	if err != nil {
		return nil, err
	}
	if l.RemotePath == "" {
		p, err := s.findWorkspacePath(ctx, l, g)
		if err != nil {
			return nil, err
		}
		if l, err = s.store.Update(ctx, l.InstanceID, store.Patch{RemotePath: &p.Preferred}); err != nil {
			return nil, err
		}
	}
	out, err := s.syncUp(ctx, l, g, cfg, r)
	s.record(ctx, "sync_workspace_to_instance", r.InstanceID, "", err, syncDetail(out))
	return out, err
}

func syncDetail(r *SyncToInstanceResult) any {
	if r == nil {
		return nil
	}
	return map[string]any{"sent": r.FilesSent, "deleted": r.FilesDeleted, "conflicts": len(r.Conflicts)}
}

// syncUp syncs into the guest.
func (s *Service) syncUp(ctx context.Context, l store.Lease, g *guest.Client, cfg config.Config, r SyncToInstanceRequest) (*SyncToInstanceResult, error) {
	req, err := s.syncRequest(ctx, l, g, cfg, r.LocalPath, r.RemotePath)
	if err != nil {
		return nil, err
	}
	req.Exclude = append(req.Exclude, r.Exclude...)
	res, err := workspace.Up(ctx, req)
	// Also after an error: it may have written the files before.
	if ierr := s.reinjectGuest(ctx, l, g); err == nil {
		err = ierr
	}
	if err != nil {
		return nil, s.fileFault(ctx, l, "syncing into the instance", err)
	}
	out := &SyncToInstanceResult{
		InstanceID: l.InstanceID, LocalPath: req.Local.Path(), RemotePath: req.Remote,
		ArchiveBytes: res.ArchiveBytes, Exclude: res.Exclude,
		FilesSent: res.FilesSent, FilesUnchanged: res.FilesUnchanged, FilesDeleted: res.FilesDeleted,
		Conflicts: conflicts(res.Conflicts), GuestChanged: orEmpty(res.GuestChanged),
		Skipped: refusals(res.Skipped), Notes: orEmpty(res.Notes), Status: res.Status,
	}
	return out, nil
}

// SyncInstanceToWorkspace brings the guest's changes back to the host.
func (s *Service) SyncInstanceToWorkspace(ctx context.Context, r SyncFromInstanceRequest) (*SyncFromInstanceResult, error) {
	switch r.OnConflict {
	case "", "fail", "keep_host", "keep_guest":
	default:
		return nil, fault.New(fault.InvalidArgument, "on_conflict is %q; it must be fail, keep_host or keep_guest", r.OnConflict)
	}
	l, g, err := s.bound(ctx, r.InstanceID)
	if err != nil {
		return nil, err
	}
	// What must not travel is what the lease says once no call injects any more.
	unlock, err := s.lockPreparing(ctx, l)
	if err != nil {
		return nil, s.guestFault(ctx, l, "sync_instance_to_workspace", err)
	}
	defer unlock()
	if l, err = s.store.LiveLease(ctx, r.InstanceID); err != nil {
		return nil, s.ended(ctx, r.InstanceID, err)
	}
	cfg, err := s.leaseConfig(l)
	if err != nil {
		return nil, err
	}
	req, err := s.syncRequest(ctx, l, g, cfg, r.LocalPath, r.RemotePath)
	if err != nil {
		return nil, err
	}
	res, err := workspace.Down(ctx, req, workspace.DownOptions{DryRun: r.DryRun, OnConflict: workspace.OnConflict(r.OnConflict)})
	if !r.DryRun {
		if ierr := s.reinjectHost(l, cfg); err == nil {
			err = ierr
		}
	}
	err = s.fileFault(ctx, l, "syncing from the instance", err)
	if !r.DryRun {
		s.record(ctx, "sync_instance_to_workspace", r.InstanceID, "", err, nil)
	}
	if err != nil {
		return nil, err
	}
	return &SyncFromInstanceResult{
		InstanceID: l.InstanceID, RemotePath: req.Remote, LocalPath: req.Local.Path(),
		Created: orEmpty(res.Created), Updated: orEmpty(res.Updated), Deleted: orEmpty(res.Deleted),
		Conflicts: conflicts(res.Conflicts), Refused: refusals(res.Refused), Failed: refusals(res.Failed),
		DryRun: r.DryRun, Status: res.Status,
	}, nil
}

// syncRequest is what both directions have in common.
func (s *Service) syncRequest(ctx context.Context, l store.Lease, g *guest.Client, cfg config.Config, localPath, remotePath string) (workspace.Request, error) {
	if err := checkGuestPath("remote_path", remotePath); err != nil {
		return workspace.Request{}, err
	}
	if localPath == "" {
		localPath = l.WorkspaceRoot
	}
	loc, err := s.local(l, localPath)
	if err != nil {
		return workspace.Request{}, err
	}
	remote := guestPath(l, remotePath)
	if remotePath == "" && l.RemotePath == "" {
		return workspace.Request{}, fault.New(fault.InvalidArgument, "no workspace was synced into instance %s yet", l.InstanceID).
			Next("call prepare_workspace or sync_workspace_to_instance first, or pass remote_path")
	}
	req := workspace.Request{
		Guest: workspace.FromClient(g), Local: loc, Remote: remote,
		ManifestDir:  s.manifestDir(l),
		Exclude:      cfg.Sync.Excludes(),
		UseGitignore: cfg.Sync.UseGitignore,
		Trust:        hostpath.NewTrust(cfg.Sync.AllowRefused),
		Progress:     transfer(ctx),
	}
	s.stripInjected(l, &req)
	return req, nil
}

// CollectArtifacts takes chosen files out of the guest.
func (s *Service) CollectArtifacts(ctx context.Context, r CollectArtifactsRequest) (*CollectArtifactsResult, error) {
	if len(r.RemotePaths) == 0 || len(r.RemotePaths) > 1000 {
		return nil, fault.New(fault.InvalidArgument, "remote_paths has %d entries; it must have 1 to 1000", len(r.RemotePaths))
	}
	for _, p := range r.RemotePaths {
		if err := checkGuestPath("remote_paths", p); err != nil {
			return nil, err
		}
	}
	limit := orDefault(r.MaxTotalBytes, defaultArtifactBytes)
	if limit < 1 {
		return nil, fault.New(fault.InvalidArgument, "max_total_bytes is %d; it must be 1 or more", limit)
	}
	l, g, err := s.live(ctx, r.InstanceID)
	if err != nil {
		return nil, err
	}
	loc, err := s.local(l, r.LocalDest)
	if err != nil {
		return nil, err
	}
	cfg, err := s.leaseConfig(l)
	if err != nil {
		return nil, err
	}
	res, err := workspace.Collect(ctx, workspace.CollectRequest{
		Guest: workspace.FromClient(g), RemotePaths: r.RemotePaths, Base: guestPath(l, ""), Local: loc, MaxTotalBytes: limit,
		Trust: hostpath.NewTrust(cfg.Sync.AllowRefused), Now: s.now, Progress: transfer(ctx),
	})
	err = s.fileFault(ctx, l, "collect_artifacts", err)
	s.record(ctx, "collect_artifacts", r.InstanceID, "", err, map[string]any{"local_dest": r.LocalDest, "remote_paths": r.RemotePaths})
	if err != nil {
		return nil, err
	}
	out := &CollectArtifactsResult{
		InstanceID: l.InstanceID, LocalDest: res.LocalDir, Artifacts: []Artifact{}, Failed: []ArtifactFailure{}, ManifestPath: res.ManifestPath,
	}
	for _, a := range res.Artifacts {
		out.Artifacts = append(out.Artifacts, Artifact(a))
	}
	for _, f := range res.Failed {
		out.Failed = append(out.Failed, ArtifactFailure(f))
	}
	return out, nil
}

// fileFault is guestFault for what the workspace package returns.
func (s *Service) fileFault(ctx context.Context, l store.Lease, what string, err error) error {
	if errors.Is(err, workspace.ErrNotFound) {
		var f *fault.Error
		if !errors.As(err, &f) {
			return fault.Wrap(err, fault.InvalidArgument, "%s", what)
		}
	}
	return s.guestFault(ctx, l, what, err)
}

func refusals(lists ...[]workspace.Problem) []Refusal {
	out := []Refusal{}
	for _, ps := range lists {
		for _, p := range ps {
			out = append(out, Refusal(p))
		}
	}
	return out
}

func conflicts(cs []workspace.Conflict) []Conflict {
	out := []Conflict{}
	for _, c := range cs {
		out = append(out, Conflict(c))
	}
	return out
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
