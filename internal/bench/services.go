package bench

import (
	"context"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// preparedWithin bounds the making of a template with services, which the
// server does in the background.
const preparedWithin = 20 * time.Minute

// services is a create with MySQL and Redis: set up in a VM that has none, and
// in one that begins with them running. It needs images of both, from a
// registry or in the guest image that the options name.
func (b *bench) services(ctx context.Context) error {
	if b.o.ServicesImage == "" {
		b.say("services: left out, since no image for them was named")
		return nil
	}
	vm := map[string]any{"image": b.o.ServicesImage}
	if b.o.CPUs != 0 {
		vm["cpus"] = b.o.CPUs
	}
	args := map[string]any{
		"wait_for_ready": true,
		"overrides":      map[string]any{"vm": vm, "infra": map[string]any{"mysql": map[string]any{"enabled": true}, "redis": map[string]any{"enabled": true}}},
	}
	var scratch, prepared []float64
	one := func(s *server, want string) (took float64, found string, err error) {
		began := time.Now()
		res, err := s.create(ctx, args)
		if err != nil {
			return 0, "", err
		}
		took = ms(time.Since(began))
		found = statusOf(res)
		if want != "" && found != want {
			return 0, "", fault.New(fault.Internal, "the services were %s, not %s: %v", found, want, res.Warnings)
		}
		return took, found, s.destroy(ctx, res.InstanceID)
	}
	err := b.with(ctx, func(s *server) error {
		// The template without services is made outside the figures.
		plain := map[string]any{"auto_bootstrap": false, "overrides": map[string]any{"vm": vm}}
		res, err := s.create(ctx, plain)
		if err != nil {
			return err
		}
		if err := s.destroy(ctx, res.InstanceID); err != nil {
			return err
		}
		for i := range b.o.Cold {
			b.say("create with services from scratch %d of %d", i+1, b.o.Cold)
			took, _, err := one(s, "created")
			if err != nil {
				return err
			}
			scratch = append(scratch, took)
		}
		return nil
	}, "SANDBOX_TEMPLATES=plain")
	if err != nil {
		return err
	}
	err = b.with(ctx, func(s *server) error {
		for end := time.Now().Add(preparedWithin); ; {
			b.say("waiting for the template with services")
			_, found, err := one(s, "")
			if err != nil {
				return err
			}
			if found == "running" {
				break
			}
			if time.Now().After(end) {
				return fault.New(fault.RuntimeNotReady, "no template with services was made within %s", preparedWithin)
			}
			select {
			case <-time.After(5 * time.Second): // nothing tells of another process's work
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		for i := range b.o.Rounds {
			b.say("create with services running %d of %d", i+1, b.o.Rounds)
			took, _, err := one(s, "running")
			if err != nil {
				return err
			}
			prepared = append(prepared, took)
		}
		return nil
	})
	if err != nil {
		return err
	}
	const call = "create_instance(wait_for_ready=true) with infra.mysql and infra.redis, to all services ready, "
	b.add(figure("create with services: from scratch", "ms", call+"SANDBOX_TEMPLATES=plain", scratch))
	b.add(figure("create with services: prepared", "ms", call+"in a template with them running", prepared))
	return nil
}

// statusOf is how the services of a new instance came to run; "" if not all of
// them did in the same way.
func statusOf(res sandbox.CreateInstanceResult) string {
	if res.Bootstrap == nil {
		return ""
	}
	status := ""
	for name, s := range res.Bootstrap.Services {
		if !res.Bootstrap.ServiceReadiness[name].Ready || status != "" && s.Status != status {
			return ""
		}
		status = s.Status
	}
	return status
}
