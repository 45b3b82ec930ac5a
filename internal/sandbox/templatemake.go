package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/services"
	"sandboxforge/internal/store"
	"sandboxforge/internal/supervisor"
	"sandboxforge/internal/template"
)

// templateAttempts is how often the making of a template is tried.
const templateAttempts = 2

// Bounds of the making of a template, beyond its boot; tests shorten these.
var (
	settleLimit = dockerWait + 2*time.Minute // Docker, then idleness
	saveLimit   = 5 * time.Minute
	tryLimit    = 2 * time.Minute // of a clone, to its first command's end
)

// makeTemplate makes the template of key, unless another process does; made
// says which. A VM that hangs on the way is ended by its lease's deadline at
// the latest and the whole is tried once more.
func (s *Service) makeTemplate(ctx context.Context, st *template.Store, sel Selected, spec backend.Spec, p preparation, key string) (t *template.Template, made bool, err error) {
	d := template.Description{
		Key: key, Backend: sel.Backend.Name(), Image: orName(spec.Image), Arch: spec.Arch, CPUs: spec.CPUs, MemoryMiB: spec.MemoryMiB,
		Services: services.Names(p.services),
	}
	progress := func(stage, message string) { report(ctx, Progress{Stage: stage, Message: message}) }
	// Others may make it meanwhile, and hang.
	patience, cancel := context.WithTimeoutCause(ctx, templateAttempts*s.attemptLimit(p)+time.Minute,
		fault.New(fault.RuntimeNotReady, "another process works on the template for too long"))
	defer cancel()
	t, made, err = st.Make(patience, d, progress, func(_ context.Context, dir string, tell backend.Progress) error {
		ctx := WithProgress(ctx, func(pr Progress) { tell(pr.Stage, pr.Message) })
		for attempt := 1; ; attempt++ {
			err := s.saveTemplate(ctx, sel, spec, p, dir)
			if err == nil || ctx.Err() != nil || attempt == templateAttempts || noRoom(err) || errors.Is(err, backend.ErrUnsupported) {
				return err
			}
			s.log.Warn("a template could not be made, trying once more", "key", key, "error", err)
			if err := st.Keeper.RemoveState(ctx, dir); err != nil {
				return err
			}
			report(ctx, Progress{Stage: "template", Message: "trying once more: " + reasonOf(err)})
		}
	})
	if err != nil || !made {
		return t, false, err
	}
	if _, err := st.Evict(ctx, key); err != nil && ctx.Err() == nil {
		s.log.Warn("old templates not removed", "error", err)
	}
	return t, true, nil
}

func orName(image string) string {
	if image == "" {
		return "default"
	}
	return image
}

// attemptLimit bounds one try to make a template.
func (s *Service) attemptLimit(p preparation) time.Duration {
	return s.boot + settleLimit + preloadLimit + saveLimit + tryLimit + p.patience()
}

// saveTemplate boots a VM, makes it ready, saves it into dir, and tries a clone
// of what was saved. Nothing but dir is left when it returns.
func (s *Service) saveTemplate(ctx context.Context, sel Selected, spec backend.Spec, p preparation, dir string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.attemptLimit(p),
		fault.New(fault.RuntimeNotReady, "the template was not ready within %s", s.attemptLimit(p)).
			Because("the host is too busy, or the guest hangs"))
	defer cancel()
	withDocker := false
	err := s.withPassingVM(ctx, sel, templateSpec(spec), s.attemptLimit(p), "made into a template", func(ctx context.Context, l store.Lease, c *supervisor.Client) error {
		var err error
		if withDocker, err = s.makeReady(ctx, c.Guest(), p); err != nil {
			return err
		}
		report(ctx, Progress{Stage: "template", Message: "saving the VM"})
		work, cancel := context.WithTimeout(ctx, saveLimit)
		defer cancel()
		_, err = c.Save(work, dir, true)
		return err
	})
	if err != nil {
		return err
	}
	clone := spec
	clone.From = dir
	err = s.withPassingVM(ctx, sel, clone, s.attemptLimit(p), "a trial of its template", func(ctx context.Context, l store.Lease, c *supervisor.Client) error {
		report(ctx, Progress{Stage: "template", Message: "trying a clone"})
		return s.tryClone(ctx, c.Guest(), withDocker, p)
	})
	if err != nil && !noRoom(err) {
		return fault.Wrap(err, fault.RuntimeNotReady, "the template was made, but a clone of it does not work").Because("%s", reasonOf(err))
	}
	return err
}

// withPassingVM runs f with a VM of a template lease, which is gone when it
// returns.
func (s *Service) withPassingVM(ctx context.Context, sel Selected, spec backend.Spec, limit time.Duration, purpose string, f func(context.Context, store.Lease, *supervisor.Client) error) error {
	check := s.measureHost(ctx, hostCheck{template: true, vm: config.VMConfig{CPUs: spec.CPUs, MemoryGiB: float64(spec.MemoryMiB) / 1024, DiskGiB: float64(spec.MemoryMiB)/1024 + 1}})
	raw, err := json.Marshal(leaseSpec{VM: spec})
	if err != nil {
		return fault.Wrap(err, fault.Internal, "the VM's specification cannot be recorded")
	}
	s.admitting.Add(1)
	lease, err := s.store.Admit(ctx, store.NewLease{
		Kind: store.KindTemplate, Backend: sel.Backend.Name(), ProfileName: "default",
		ExpiresAt: s.now().Add(limit + undoTimeout), MemoryMiB: spec.MemoryMiB, DiskBytes: spec.DiskBytes, CPUs: spec.CPUs,
		Spec: raw,
	}, store.Limits{Decide: check.decide})
	if err != nil {
		s.admitting.Add(-1)
		return err
	}
	done := s.busy(lease.InstanceID)
	s.admitting.Add(-1)
	defer done()
	lease, err = s.bringUp(ctx, sel, lease, map[string]int64{})
	if err != nil {
		s.undoCreate(ctx, lease, err)
		return err
	}
	var c *supervisor.Client
	if c, err = s.links.get(ctx, lease.BackendInstanceName); err == nil {
		err = f(ctx, lease, c)
	}
	work, cancel := detached(ctx, undoTimeout)
	defer cancel()
	if _, terr := s.teardown(work, lease, store.Destroying, purpose, 0); terr != nil {
		s.log.Warn("a passing VM is not removed yet", "instance", lease.InstanceID, "error", terr)
	}
	return err
}

// cleanScript removes what must not be in a clone: traces of what was run to
// make the template, and what is a single machine's.
const cleanScript = `
rm -f /root/.*_history /root/.lesshst /home/*/.*_history /home/*/.lesshst /var/lib/systemd/random-seed
command -v fstrim >/dev/null && fstrim / 2>/dev/null
sync
`

// makeReady makes a VM that has just booted what clones begin as: whatever the
// image offers answers, the usual programs are in memory, nothing is going on,
// and nothing tells of what was done for it.
func (s *Service) makeReady(ctx context.Context, g *guest.Client, p preparation) (withDocker bool, err error) {
	limit := settleLimit + p.patience()
	if s.preloads(ctx, g) {
		limit += preloadLimit
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fault.New(fault.RuntimeNotReady, "the guest was not ready to be saved within %s", limit))
	defer cancel()
	if withDocker, err = hasDocker(ctx, g); err != nil {
		return false, err
	}
	if withDocker {
		if err := s.waitDocker(ctx, g, dockerWait); err != nil {
			return false, err
		}
		if err := s.waitPreloaded(ctx, g); err != nil {
			return false, err
		}
		e := newEngine(g)
		defer e.Close()
		if _, err := e.EnsureNetwork(ctx, defaultNetwork); err != nil {
			return false, fault.Wrap(err, fault.DockerCommandFailed, "the network of the template could not be made")
		}
		if err := p.run(ctx, g, e); err != nil {
			return false, err
		}
	}
	for _, step := range []struct {
		command, user string
		mayFail       bool
		says          string // "": what the step before it says
	}{
		// As an agent's first commands run: its shell, and what it calls.
		{command: "true; command -v docker >/dev/null && docker version >/dev/null; command -v git >/dev/null && git --version >/dev/null; true", mayFail: true, says: "running the usual programs once"},
		{command: cleanScript, user: "root", mayFail: true},
	} {
		if step.says != "" {
			report(ctx, Progress{Stage: "template", Message: step.says})
		}
		id := guest.NewID("template-")
		p, err := g.Run(ctx, id, guest.Spec{Command: step.command, User: step.user, Dir: "/", Timeout: 2 * time.Minute}, nil)
		if err != nil {
			return false, fmt.Errorf("preparing the guest: %w", err)
		}
		if p.ExitCode != 0 || p.Status != guest.StatusExited {
			if !step.mayFail {
				return false, fault.New(fault.RuntimeNotReady, "the guest could not be prepared: %.40q ended with %d", step.command, p.ExitCode)
			}
			s.log.Info("a step of the preparation of a template failed", "command", fmt.Sprintf("%.60q", step.command), "exit", p.ExitCode)
		}
		if err := g.Forget(ctx, id); err != nil {
			return false, err
		}
	}
	report(ctx, Progress{Stage: "template", Message: fmt.Sprintf("letting the guest come to rest, %s at most", idleLimit)})
	if err := awaitIdle(ctx, g); err != nil {
		if ctx.Err() != nil {
			return false, err
		}
		s.log.Info("a template is saved although its guest does not come to rest", "reason", err)
	}
	return withDocker, nil
}

// tryClone asks of a clone what its users will.
func (s *Service) tryClone(ctx context.Context, g *guest.Client, withDocker bool, prep preparation) error {
	ctx, cancel := context.WithTimeoutCause(ctx, tryLimit, fault.New(fault.RuntimeNotReady, "a clone's first command did not end within %s", tryLimit))
	defer cancel()
	p, err := g.Run(ctx, guest.NewID("try-"), guest.Spec{Command: "echo $((6*7)) >/tmp/.try && cat /tmp/.try && rm /tmp/.try"}, nil)
	if err != nil {
		return err
	}
	if p.ExitCode != 0 || p.StdoutBytes != 3 {
		return fault.New(fault.RuntimeNotReady, "a clone's first command ended with %d and %d bytes", p.ExitCode, p.StdoutBytes)
	}
	if !withDocker {
		return nil
	}
	e := newEngine(g)
	defer e.Close()
	if err := e.Ping(ctx); err != nil {
		return fault.Wrap(err, fault.RuntimeNotReady, "Docker does not answer in a clone")
	}
	return prep.run(ctx, g, e)
}
