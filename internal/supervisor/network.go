package supervisor

import (
	"context"
	"fmt"
	"sync"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/network"
)

// wire gives a machine whose card is wired to its owner a network. It is there
// from the first moment on: a guest that boots without one waits for it.
func (s *supervisor) wire(m backend.Machine) error {
	w, ok := m.(backend.Wired)
	if !ok {
		return nil // the hypervisor's own network
	}
	// Policies of what the guest may reach are for Config.Policy.
	n, err := network.New(network.Config{Log: s.log})
	if err != nil {
		return fmt.Errorf("the VM's network cannot be made: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := n.Serve(ctx, w.DialNetwork); err != nil {
			s.log.Error("the VM has no network", "error", err)
		}
	})
	wg.Go(func() {
		// Without a VM there is nothing to dial again.
		select {
		case <-m.Done():
			cancel()
		case <-ctx.Done():
		}
	})
	s.mu.Lock()
	s.unwire = func() {
		cancel()
		n.Close() //nolint:errcheck // never fails
		wg.Wait()
	}
	s.mu.Unlock()
	return nil
}
