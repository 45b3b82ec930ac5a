package sandbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/config"
	"sandboxforge/internal/docker"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/services"
	"sandboxforge/internal/store"
	"sandboxforge/internal/template"
)

// A prepared template is one in which the services of a configuration run: a VM
// that begins there has them answering at once. It is made in the background
// once prepare_workspace has succeeded with them, because to fetch and set up
// their images takes minutes. Their passwords are thrown away: whoever begins
// there gives the servers new ones before it is handed out (see prepareServices).

// servicesPatience is what the making of a prepared template gets on top of a
// plain one's: images are fetched, databases set up.
const servicesPatience = 20 * time.Minute

// preparation is what a template has running beyond an idle guest; the zero
// value is nothing.
type preparation struct {
	services []services.Service
	network  string // on which they are
}

// preparationOf is what a configuration wants running when a create returns.
// Where services use a network that the sandbox does not make, there is nothing
// to prepare.
func preparationOf(cfg config.Config) (preparation, error) {
	if !cfg.Infra.IncludeServicesByDefault || !cfg.Infra.EnsureNetwork {
		return preparation{}, nil
	}
	list, err := services.Wanted(cfg.Infra)
	if err != nil || len(list) == 0 {
		return preparation{}, err
	}
	return preparation{services: list, network: networkName(cfg)}, nil
}

func (p preparation) empty() bool { return len(p.services) == 0 }

// key tells preparations apart; "" for none.
func (p preparation) key() string {
	if p.empty() {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s", p.network, services.Key(p.services)))
	return hex.EncodeToString(sum[:])
}

// patience is how much longer than a plain template's its making may take.
func (p preparation) patience() time.Duration {
	if p.empty() {
		return 0
	}
	return servicesPatience
}

// run has the services of p run in a guest and answer.
func (p preparation) run(ctx context.Context, g *guest.Client, e *docker.Engine) error {
	if p.empty() {
		return nil
	}
	if _, err := e.EnsureNetwork(ctx, p.network); err != nil {
		return fault.Wrap(err, fault.DockerCommandFailed, "the network of the services could not be made")
	}
	n, err := e.Network(ctx, p.network)
	if err != nil {
		return fault.Wrap(err, fault.DockerCommandFailed, "the network of the services is gone")
	}
	place := placeOf(ctx, g, e, n)
	return together(len(p.services), func(i int) error {
		r, err := place.Start(ctx, p.services[i], services.Known{})
		if err != nil {
			return err
		}
		return place.Await(ctx, &r, services.Wait{Deadline: time.Now().Add(services.ReadyTimeout), Extend: true})
	})
}

// preparedOrigin is the prepared template for cfg, if there is one. It makes
// none.
func (s *Service) preparedOrigin(ctx context.Context, sel Selected, spec backend.Spec, cfg config.Config) (origin, bool) {
	st := s.templateStore(sel)
	p, err := preparationOf(cfg)
	if st == nil || !s.settings.PreparedTemplates || err != nil || p.empty() {
		return origin{}, false
	}
	key, err := templateKey(ctx, st, spec, p)
	if err != nil {
		return origin{}, false
	}
	t, err := st.Find(ctx, key)
	if err != nil {
		if err != template.ErrMissing {
			s.log.Info("the template with the services running cannot be used", "reason", err)
		}
		return origin{}, false
	}
	return origin{template: t}, true
}

// keepPrepared has the prepared template of l's configuration made in the
// background, unless it is there: the services of res have just run in l. A
// configuration that somebody changes while its VM lives is not settled enough
// for that.
func (s *Service) keepPrepared(l store.Lease, res *config.Resolved) {
	if tree, err := json.Marshal(res.Tree); err != nil || !bytes.Equal(tree, l.Config) {
		return
	}
	sel, ok := s.selection.peek()
	if !ok || !s.settings.PreparedTemplates || sel.Backend.Name() != l.Backend {
		return
	}
	st := s.templateStore(sel)
	p, err := preparationOf(res.Config)
	if st == nil || err != nil || p.empty() {
		return
	}
	spec := specOf(l).VM
	spec.Name, spec.Hostname, spec.From = "", "", ""
	s.wg.Go(func() {
		// What callers wait for goes first.
		if s.pool.awaitQuiet(s.root) != nil {
			return
		}
		if _, _, err := s.findTemplate(s.root, st, sel, spec, p, false, nil); err != nil && s.root.Err() == nil {
			s.log.Info("no template with the services running", "services", strings.Join(services.Names(p.services), ", "), "reason", reasonOf(err))
		}
	})
}
