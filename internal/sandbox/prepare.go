package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"sandboxforge/internal/config"
	"sandboxforge/internal/docker"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/services"
	"sandboxforge/internal/store"
)

// Bounds of the wait for Docker to answer after the guest does. Under software
// emulation on a busy host a cold start of Docker takes a minute. Without
// wait_for_ready the wait is only as long as the most impatient clients', and
// a Docker that is not there yet is a warning.
const (
	dockerWait      = 3 * time.Minute
	dockerShortWait = 45 * time.Second
)

// runtimeName is what runtime fields say; there is only Docker.
const runtimeName = "docker"

// PrepareWorkspace makes an instance ready for work: it finds a place for the
// workspace and syncs it in, waits for Docker to answer, makes the instance's
// network, and has the configured services run. It is idempotent. Cancelling it leaves the instance as
// it is; what was done stays done.
func (s *Service) PrepareWorkspace(ctx context.Context, r PrepareWorkspaceRequest) (*PrepareWorkspaceResult, error) {
	if err := checkServiceTimeout(r.ServiceTimeoutSeconds); err != nil {
		return nil, err
	}
	l, g, err := s.bound(ctx, r.InstanceID)
	if err != nil {
		return nil, err
	}
	out, err := s.prepare(ctx, l, g, r)
	s.record(ctx, "prepare_workspace", r.InstanceID, "", err, nil)
	return out, err
}

func (s *Service) prepare(ctx context.Context, l store.Lease, g *guest.Client, r PrepareWorkspaceRequest) (*PrepareWorkspaceResult, error) {
	began := s.now()
	res := s.resolveConfig(l.WorkspaceRoot, specOf(l).overrides())
	if err := res.Err(); err != nil {
		return nil, err
	}
	out := &PrepareWorkspaceResult{
		InstanceID:       l.InstanceID,
		WorkspaceRoot:    l.WorkspaceRoot,
		WorkspaceID:      l.WorkspaceID,
		Runtime:          runtimeName,
		DockerCommand:    "docker",
		IncludeServices:  orDefault(r.IncludeServices, true),
		WaitForReady:     r.WaitForReady,
		Network:          NetworkResult{Name: networkName(res.Config), Status: "skipped"},
		Services:         map[string]ServiceResult{},
		ServiceReadiness: map[string]ServiceReadiness{},
		ConnectionEnv:    map[string]string{},
		EnvInjections:    []EnvInjection{},
		TimingsMS:        map[string]int64{},
	}
	var err error
	if out.WorkspacePaths, err = s.findWorkspacePath(ctx, l, g); err != nil {
		return nil, err
	}
	if l.RemotePath == "" {
		p := out.WorkspacePaths.Preferred
		if l, err = s.store.Update(ctx, l.InstanceID, store.Patch{RemotePath: &p}); err != nil {
			return nil, err
		}
	}

	// The workspace goes in while Docker still starts.
	var (
		wg        sync.WaitGroup
		syncErr   error
		dockerErr error
	)
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	if orDefault(r.SyncWorkspace, true) {
		wg.Go(func() {
			t := s.now()
			out.Sync, syncErr = s.syncUp(work, l, g, res.Config, SyncToInstanceRequest{InstanceID: l.InstanceID})
			out.TimingsMS["sync"] = s.now().Sub(t).Milliseconds()
			if syncErr != nil {
				cancel()
			}
		})
	}
	t := s.now()
	patience := dockerShortWait
	if r.WaitForReady {
		patience = dockerWait
	}
	dockerErr = s.installAndWait(work, l, g, res.Config, patience, r.WaitForReady)
	waited := s.now().Sub(t).Milliseconds()
	wg.Wait()
	out.TimingsMS["docker"] = waited
	if syncErr != nil {
		return nil, syncErr
	}
	if ctx.Err() != nil {
		return nil, fault.Wrap(context.Cause(ctx), fault.Cancelled, "prepare_workspace was cancelled")
	}
	if dockerErr != nil {
		if r.WaitForReady {
			return nil, dockerErr
		}
		out.Warnings = append(out.Warnings, "Docker does not answer yet: "+dockerErr.Error())
		if wanted, err := services.Wanted(res.Config.Infra); err == nil && len(wanted) > 0 && out.IncludeServices && res.Config.Infra.IncludeServicesByDefault {
			out.Warnings = append(out.Warnings, "so these services were not started: "+strings.Join(services.Names(wanted), ", ")+"; call prepare_workspace again")
		}
	} else {
		out.RuntimeReady = true
		if err := s.prepareDocker(ctx, l, g, res.Config, r, out); err != nil {
			return nil, err
		}
	}
	name := runtimeName
	patch := store.Patch{RuntimeName: &name, RuntimeReady: &out.RuntimeReady}
	if out.RuntimeReady {
		patch.DockerCommand = &out.DockerCommand
	}
	if _, err := s.store.Update(ctx, l.InstanceID, patch); err != nil {
		return nil, err
	}
	out.TimingsMS["total"] = s.now().Sub(began).Milliseconds()
	if out.servicesReady() {
		s.keepPrepared(l, res)
	}
	return out, nil
}

// prepareDocker does what needs a Docker that answers.
func (s *Service) prepareDocker(ctx context.Context, l store.Lease, g *guest.Client, cfg config.Config, r PrepareWorkspaceRequest, out *PrepareWorkspaceResult) (err error) {
	// To start a program takes an emulated guest a tenth of a second: the rest
	// goes on meanwhile.
	probed := make(chan error, 1)
	go func() {
		p, err := g.Run(ctx, guest.NewID("probe-"), guest.Spec{Argv: []string{"test", "-w", docker.Socket}, Timeout: 30 * time.Second}, nil)
		if err == nil && p.ExitCode != 0 {
			out.DockerCommand = "sudo -n docker"
		}
		probed <- err
	}()
	defer func() {
		if perr := <-probed; perr != nil && err == nil {
			err = s.guestFault(ctx, l, "looking at Docker's socket", perr)
		}
	}()
	if err := s.waitPreloaded(ctx, g); err != nil {
		return s.guestFault(ctx, l, "loading the guest image's container images", err)
	}
	e := newEngine(g)
	defer e.Close()
	if cfg.Infra.EnsureNetwork {
		if out.Network.Status, err = ensureNetwork(ctx, e, out.Network.Name); err != nil {
			if ctx.Err() != nil {
				return fault.Wrap(context.Cause(ctx), fault.Cancelled, "prepare_workspace was cancelled")
			}
			return fault.Wrap(err, fault.DockerCommandFailed, "the network %s could not be made", out.Network.Name).
				Next("call prepare_workspace again, or look at `docker network ls` with run_command")
		}
	}
	if !out.IncludeServices {
		out.ConnectionEnv = connection(l)
		return nil
	}
	unlock, err := s.lockPreparing(ctx, l)
	if err != nil {
		return s.guestFault(ctx, l, "prepare_workspace", err)
	}
	defer unlock()
	// Another call may have changed what the lease remembers while this one
	// waited.
	if l, err = s.store.LiveLease(ctx, l.InstanceID); err != nil {
		return s.ended(ctx, out.InstanceID, err)
	}
	return s.prepareServices(ctx, l, g, e, cfg, r, out)
}

// servicesReady reports whether there are services, and all of them answer.
func (r *PrepareWorkspaceResult) servicesReady() bool {
	for name := range r.Services {
		if !r.ServiceReadiness[name].Ready {
			return false
		}
	}
	return len(r.Services) > 0
}

// installAndWait returns when Docker answers in the guest, which gets one if it
// has none. Whoever does not wait for readiness waits no longer than patience for
// that either.
func (s *Service) installAndWait(ctx context.Context, l store.Lease, g *guest.Client, cfg config.Config, patience time.Duration, all bool) error {
	install, cancel := ctx, context.CancelFunc(func() {})
	if !all {
		install, cancel = context.WithTimeout(ctx, patience)
	}
	err := s.ensureDocker(install, l, g, cfg)
	cancel()
	if err != nil {
		return err
	}
	return s.waitDocker(ctx, g, patience)
}

// waitDocker returns when Docker answers in the guest. A guest without Docker
// is noticed at once.
func (s *Service) waitDocker(ctx context.Context, g *guest.Client, patience time.Duration) error {
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	e := newEngine(g)
	defer e.Close()
	if has, err := hasDocker(wait, g); err == nil && !has {
		return fault.New(fault.RuntimeNotReady, "this guest has no Docker").
			Because("its image was built from a recipe without Docker").
			Next("call prepare_workspace, which installs it where it can").
			Next("set vm.image to an image with Docker (the default one), or pass auto_bootstrap: false")
	}
	began := time.Now()
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		// Where the socket is there before the engine, a connection is accepted
		// and not answered: short tries keep the waiting caller informed.
		try, cancel := context.WithTimeout(wait, 2*time.Second)
		err := e.Ping(try)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fault.Wrap(context.Cause(ctx), fault.Cancelled, "waiting for Docker was cancelled")
		}
		report(ctx, Progress{Stage: "docker", Message: fmt.Sprintf("waiting for Docker in the guest, %.0f s", time.Since(began).Seconds())})
		select {
		case <-time.After(pause):
		case <-wait.Done():
			return fault.Wrap(err, fault.RuntimeNotReady, "Docker did not answer in the guest within %v", patience).
				Because("Docker failed to start, or the host is too busy").
				Next("call prepare_workspace again").
				Next("look at `journalctl -u docker` with run_command")
		}
	}
}

// hasDocker reports whether the guest has an engine that could answer.
func hasDocker(ctx context.Context, g *guest.Client) (bool, error) {
	for _, path := range []string{"/usr/bin/dockerd", "/usr/sbin/dockerd"} {
		_, err := g.Stat(ctx, path, false)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, guest.ErrNotFound) {
			return false, err
		}
	}
	return false, nil
}

// findWorkspacePath makes the first of the usual places that the guest's user
// can write to.
func (s *Service) findWorkspacePath(ctx context.Context, l store.Lease, g *guest.Client) (WorkspacePaths, error) {
	var p WorkspacePaths
	for _, dir := range []string{"/workspace", "/tmp/workspace", guestHome + "/workspace"} {
		if len(p.Writable) > 0 {
			// The others are only offered if they exist: making them would
			// leave traces that nobody asked for.
			if _, err := g.Stat(ctx, dir, false); errors.Is(err, guest.ErrNotFound) {
				continue
			}
		}
		writable, err := g.MakeDir(ctx, dir, 0o755, guestUser)
		if err != nil && ctx.Err() != nil {
			return p, s.guestFault(ctx, l, "looking for a place for the workspace", err)
		}
		if err == nil && writable {
			p.Writable = append(p.Writable, dir)
		}
	}
	if len(p.Writable) == 0 {
		return p, fault.New(fault.WorkspaceBootstrapFailed, "no place in the guest can hold the workspace: /workspace, /tmp/workspace and %s/workspace are not writable", guestHome)
	}
	p.Preferred = p.Writable[0]
	if l.RemotePath != "" {
		p.Preferred = l.RemotePath
	}
	return p, nil
}

// networkSuffix follows the configured prefix of a network without a name of
// its own. It is the same in every VM, which has a Docker to itself: so a
// template can have the network, which takes Docker a second to make.
const networkSuffix = "-sandbox"

// defaultNetwork is the network that templates have: that of the default
// configuration.
const defaultNetwork = "lima-net" + networkSuffix

// ensureNetwork makes a network unless it is there, and says which.
func ensureNetwork(ctx context.Context, e *docker.Engine, name string) (status string, err error) {
	created, err := e.EnsureNetwork(ctx, name)
	switch {
	case err != nil:
		return "", err
	case created:
		return "created", nil
	}
	return "existing", nil
}

// networkName is the Docker network of an instance.
func networkName(cfg config.Config) string {
	if cfg.Infra.NetworkName != "" {
		return cfg.Infra.NetworkName
	}
	return cfg.Infra.NetworkNamePrefix + networkSuffix
}
