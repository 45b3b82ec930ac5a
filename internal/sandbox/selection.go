package sandbox

import (
	"context"
	"sync"
)

// selection finds the backend for new instances once. A first probe may boot
// trial VMs for many seconds: it runs on the service's own context, any number
// of callers wait for it, and each may leave at any time. A failure is not
// remembered: what was missing may be there at the next call.
type selection struct {
	mu    sync.Mutex
	found *Selected
	now   *shared[Selected] // under way, nil otherwise
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
		p = newShared[Selected]()
		n.now = p
		s.wg.Go(func() {
			p.val, p.err = s.backends.Select(s.root, p.report)
			n.mu.Lock()
			if n.now = nil; p.err == nil {
				n.found = &p.val
			}
			n.mu.Unlock()
			close(p.done)
		})
	}
	n.mu.Unlock()
	return p.wait(ctx)
}

// CheckBackend looks in the background whether VMs can be made here, and warns
// in the log if not. The first create waits for the same answer.
func (s *Service) CheckBackend() {
	s.wg.Go(func() {
		if _, err := s.selectBackend(s.root); err != nil && s.root.Err() == nil {
			s.log.Warn("no VM can be made here: run `sandboxforge doctor`", "error", err)
		}
	})
}
