package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"sandboxforge/internal/config"
	"sandboxforge/internal/docker"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/services"
	"sandboxforge/internal/store"
)

// connectionRecord is how a lease remembers its services (Lease.Connection).
type connectionRecord struct {
	// Env is the variables that every command of the instance gets.
	Env map[string]string `json:"env,omitempty"`
	// Files names the variables that files of the workspace have, by path.
	Files map[string][]string `json:"files,omitempty"`
	// Passwords is the generated ones, by container; they outlive the variables,
	// as the containers do.
	Passwords map[string]string `json:"passwords,omitempty"`
}

func connectionOf(l store.Lease) connectionRecord {
	var c connectionRecord
	_ = json.Unmarshal(l.Connection, &c) // nothing yet, or what prepareServices wrote
	return c
}

// generated is the values that only the sandbox knows.
func (c connectionRecord) generated() []string {
	return slices.Sorted(maps.Values(c.Passwords))
}

// prepareServices has the configured services run, waits until they answer, and
// makes them known: to commands by the lease, to the guest by its /etc/hosts, to
// the workspace by the files that the configuration names. l is the lease with
// its workspace synced. The services that are no longer configured go on; their
// variables go.
func (s *Service) prepareServices(ctx context.Context, l store.Lease, g *guest.Client, e *docker.Engine, cfg config.Config, r PrepareWorkspaceRequest, out *PrepareWorkspaceResult) error {
	wanted, err := services.Wanted(cfg.Infra)
	if err != nil {
		return err
	}
	if !cfg.Infra.IncludeServicesByDefault {
		wanted = nil
	}
	old := connectionOf(l)
	if len(wanted) == 0 && len(old.Env) == 0 {
		return nil
	}
	for _, w := range wanted {
		if err := checkInjection(w); err != nil {
			return err
		}
	}
	began := s.now()
	var (
		all   []services.Running
		shall []services.Known // the passwords that the servers shall have
		place services.Place
	)
	if len(wanted) > 0 {
		n, err := e.Network(ctx, out.Network.Name)
		if err != nil {
			return s.noNetwork(ctx, l, out.Network.Name, err)
		}
		if out.Network.Status == "skipped" {
			out.Network.Status = "existing"
		}
		place = placeOf(ctx, g, e, n)
		shall = passwordsFor(l, wanted, old)
		if l, err = s.rememberFresh(ctx, l, wanted, shall, old); err != nil {
			return err
		}
		if all, err = runServices(ctx, place, wanted, shall, r, out); err != nil {
			return s.serviceFault(ctx, l, err)
		}
	}
	out.TimingsMS["services"] = s.now().Sub(began).Milliseconds()

	rec := connectionRecord{Env: map[string]string{}, Passwords: map[string]string{}}
	maps.Copy(rec.Passwords, old.Passwords)
	for i, run := range all {
		if run.Status == services.StatusCreated || shall[i].Password == "" {
			shall[i].Password = run.Password
		}
		// What is recorded is what shall be so: a process that dies before it is
		// so leaves the next call enough to go on.
		run.Password = shall[i].Password
		for _, v := range run.Connection() {
			rec.Env[v.Key] = v.Value
		}
		if run.HasPassword() && wanted[i].Password == "" {
			rec.Passwords[run.Container] = run.Password
		}
	}
	out.ConnectionEnv = maps.Clone(rec.Env)
	if len(rec.Passwords) > 0 {
		if l, err = s.recordConnection(ctx, l, connectionRecord{Env: rec.Env, Files: old.Files, Passwords: rec.Passwords}); err != nil {
			return err
		}
	}
	err = together(len(all), func(i int) error {
		if !all[i].Ready {
			return nil
		}
		return place.Adopt(ctx, &all[i], shall[i].Password)
	})
	if err != nil {
		return s.serviceFault(ctx, l, err)
	}
	if err := s.writeHosts(ctx, l, g, all); err != nil {
		return err
	}
	rec.Files = injections(all)
	// Before a file has them: what must not travel is known from here on. The
	// old files are remembered until their blocks are out.
	both := rec
	both.Files = maps.Clone(old.Files)
	if both.Files == nil {
		both.Files = map[string][]string{}
	}
	maps.Copy(both.Files, rec.Files)
	if l, err = s.recordConnection(ctx, l, both); err != nil {
		return err
	}
	if err := s.injectAll(ctx, l, g, cfg, both, rec, out); err != nil {
		return err
	}
	_, err = s.recordConnection(ctx, l, rec)
	return err
}

// placeOf is where services run in a guest; what goes on there is reported to
// ctx's sink.
func placeOf(ctx context.Context, g *guest.Client, e *docker.Engine, n docker.Network) services.Place {
	return services.Place{Engine: e, Dial: g.DialContext, Network: n, Report: func(line string) { report(ctx, Progress{Stage: "services", Message: line}) }}
}

func (s *Service) recordConnection(ctx context.Context, l store.Lease, c connectionRecord) (store.Lease, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return l, fault.Wrap(err, fault.Internal, "the services' connection cannot be recorded")
	}
	return s.store.Update(ctx, l.InstanceID, store.Patch{Connection: b})
}

// passwordsFor is the password that each service's server shall have, as far as
// that can be said before it is looked at: the one that the lease remembers, or a
// new one where the VM began in a template, whose servers have passwords that
// other VMs know; "" for the one that its container was made with.
func passwordsFor(l store.Lease, wanted []services.Service, old connectionRecord) []services.Known {
	list := make([]services.Known, len(wanted))
	for i, w := range wanted {
		if !w.HasPassword() || w.Password != "" {
			continue
		}
		list[i].Password = old.Passwords[w.Container]
		if list[i].Password == "" && specOf(l).VM.From != "" {
			list[i] = services.Known{Password: services.NewPassword(), Fresh: true}
		}
	}
	return list
}

// rememberFresh records new passwords before any server is told one.
func (s *Service) rememberFresh(ctx context.Context, l store.Lease, wanted []services.Service, shall []services.Known, old connectionRecord) (store.Lease, error) {
	rec, fresh := old, false
	rec.Passwords = maps.Clone(old.Passwords)
	for i, k := range shall {
		if k.Fresh {
			if rec.Passwords == nil {
				rec.Passwords = map[string]string{}
			}
			rec.Passwords[wanted[i].Container], fresh = k.Password, true
		}
	}
	if !fresh {
		return l, nil
	}
	return s.recordConnection(ctx, l, rec)
}

// runServices starts all services at once and waits for all of them until one
// deadline.
func runServices(ctx context.Context, p services.Place, wanted []services.Service, known []services.Known, r PrepareWorkspaceRequest, out *PrepareWorkspaceResult) ([]services.Running, error) {
	all := make([]services.Running, len(wanted))
	unfetched := make([]*services.Unfetched, len(wanted))
	err := together(len(wanted), func(i int) (err error) {
		defer func() { errors.As(err, &unfetched[i]) }()
		if all[i], err = p.Start(ctx, wanted[i], known[i]); err != nil || !known[i].Fresh || all[i].Status != services.StatusRunning {
			return err
		}
		// It runs because the template has it running. That it does not obey yet
		// is for Await to explain.
		_ = p.Adopt(ctx, &all[i], known[i].Password)
		return nil
	})
	for _, run := range all {
		if run.Status == "" {
			continue
		}
		out.Services[run.Name] = ServiceResult{Status: run.Status, Container: run.Container, Image: run.Image, Host: run.Container, Port: run.Port, Database: run.Database}
		if run.Warning != "" {
			out.Warnings = append(out.Warnings, run.Warning)
		}
	}
	if err != nil {
		if unfetched = slices.DeleteFunc(unfetched, func(u *services.Unfetched) bool { return u == nil }); len(unfetched) > 1 && errors.As(err, new(*services.Unfetched)) {
			// They fail for one reason, and are mended in one go.
			err = services.CannotFetch(unfetched...)
		}
		return all, err
	}
	wait := services.Wait{Deadline: time.Now().Add(services.ReadyTimeout), Extend: r.WaitForReady}
	if r.ServiceTimeoutSeconds != nil {
		wait = services.Wait{Deadline: time.Now().Add(time.Duration(*r.ServiceTimeoutSeconds * float64(time.Second)))}
	}
	waits := make([]error, len(all))
	err = together(len(all), func(i int) error {
		if all[i].Ready {
			return nil
		}
		waits[i] = p.Await(ctx, &all[i], wait)
		if r.WaitForReady || ctx.Err() != nil {
			return waits[i]
		}
		return nil
	})
	for i, run := range all {
		out.ServiceReadiness[run.Name] = ServiceReadiness{Ready: run.Ready, Attempts: run.Attempts}
		if waits[i] != nil && err == nil {
			f := fault.From(waits[i])
			out.Warnings = append(out.Warnings, f.Message+" ("+f.Cause+"); its container goes on unless it keeps ending: call prepare_workspace again to wait for it")
		}
	}
	return all, err
}

// together runs f for each i at once, waits for all, and returns the first
// error that is no cancellation, in the order of i. The others go on: a half
// started service is of no use to the next call.
func together(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	var first error
	for _, err := range errs {
		if err != nil && (first == nil || fault.Is(first, fault.Cancelled) && !fault.Is(err, fault.Cancelled)) {
			first = err
		}
	}
	return first
}

// noNetwork explains why there is no network for the services.
func (s *Service) noNetwork(ctx context.Context, l store.Lease, name string, err error) error {
	if !errors.Is(err, docker.ErrNotFound) {
		return s.guestFault(ctx, l, "looking for the network of the services", err)
	}
	return fault.New(fault.ServiceNotReady, "the services need the network %s, and there is none", name).
		Because("infra.ensure_network is false, and nobody has made the network").
		With("network", name).With("instance_id", l.InstanceID).
		Next("set infra.ensure_network = true").
		Next("or make it with run_command (docker network create %s), or name another one in infra.network_name", name).
		Next("or pass include_services: false")
}

// serviceFault adds the instance to what went wrong with a service.
func (s *Service) serviceFault(ctx context.Context, l store.Lease, err error) error {
	f := fault.From(err)
	if f.Code == fault.ServiceNotReady {
		return f.With("instance_id", l.InstanceID)
	}
	if f.Code == fault.Internal {
		return s.guestFault(ctx, l, "starting the services", err)
	}
	return f
}

// maxHosts bounds a guest's /etc/hosts.
const maxHosts = 256 << 10

// writeHosts makes the services' names known to the guest itself: containers on
// the network know them from Docker.
func (s *Service) writeHosts(ctx context.Context, l store.Lease, g *guest.Client, all []services.Running) error {
	const file = "/etc/hosts"
	old, err := g.ReadFile(ctx, file, maxHosts)
	if err != nil && !errors.Is(err, guest.ErrNotFound) {
		return s.guestFault(ctx, l, "reading the guest's "+file, err)
	}
	var names, addresses []string
	for _, r := range all {
		names, addresses = append(names, r.Container), append(addresses, r.Address)
	}
	text := services.Hosts(string(old), names, addresses)
	if text == string(old) {
		return nil
	}
	if err := g.WriteFile(ctx, file, []byte(text), 0o644, "root"); err != nil {
		return s.guestFault(ctx, l, "writing the guest's "+file, err)
	}
	return nil
}

// checkServiceTimeout checks prepare_workspace's parameter.
func checkServiceTimeout(seconds *float64) error {
	if seconds == nil || *seconds > 0 && *seconds <= maxServiceTimeout.Seconds() {
		return nil
	}
	return fault.New(fault.InvalidArgument, "service_timeout_seconds is %v; it must be more than 0 and at most %.0f", *seconds, maxServiceTimeout.Seconds()).
		Next("leave it out to wait as long as usual")
}

// maxServiceTimeout bounds what a caller may ask for.
const maxServiceTimeout = time.Hour
