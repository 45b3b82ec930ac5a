package sandbox

import (
	"context"
	"slices"
	"sync"
)

// selection finds the backend for new instances once. A first probe may boot
// trial VMs for many seconds: it runs on the service's own context, any number
// of callers wait for it, and each may leave at any time. A failure is not
// remembered: what was missing may be there at the next call.
type selection struct {
	mu    sync.Mutex
	found *Selected
	now   *probing // under way, nil otherwise
}

// probing is one probe with the callers that wait for it.
type probing struct {
	done chan struct{}
	sel  Selected
	err  error

	mu    sync.Mutex
	sinks []*func(Progress)
}

func (p *probing) report(stage, message string) {
	p.mu.Lock()
	sinks := slices.Clone(p.sinks)
	p.mu.Unlock()
	for _, s := range sinks {
		(*s)(Progress{Stage: stage, Message: message})
	}
}

// listen passes p's progress to ctx's sink until the result is called.
func (p *probing) listen(ctx context.Context) (leave func()) {
	sink := func(pr Progress) { report(ctx, pr) }
	p.mu.Lock()
	p.sinks = append(p.sinks, &sink)
	p.mu.Unlock()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.sinks = slices.DeleteFunc(p.sinks, func(s *func(Progress)) bool { return s == &sink })
	}
}

// peek returns what was found already.
func (n *selection) peek() (Selected, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.found == nil {
		return Selected{}, false
	}
	return *n.found, true
}

// selectBackend is Backends.Select, remembered once it succeeded.
func (s *Service) selectBackend(ctx context.Context) (Selected, error) {
	n := &s.selection
	n.mu.Lock()
	if n.found != nil {
		defer n.mu.Unlock()
		return *n.found, nil
	}
	p := n.now
	if p == nil {
		p = &probing{done: make(chan struct{})}
		n.now = p
		s.wg.Go(func() {
			p.sel, p.err = s.backends.Select(s.root, p.report)
			n.mu.Lock()
			if n.now = nil; p.err == nil {
				n.found = &p.sel
			}
			n.mu.Unlock()
			close(p.done)
		})
	}
	n.mu.Unlock()
	defer p.listen(ctx)()
	select {
	case <-p.done:
		return p.sel, p.err
	case <-ctx.Done():
		return Selected{}, context.Cause(ctx)
	}
}
