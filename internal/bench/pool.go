package bench

import (
	"context"
	"path/filepath"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

// poolLimit bounds the wait for the pool to be filled.
const poolLimit = 2 * time.Minute

// poolFilled waits until a VM is ready in the pool.
func (b *bench) poolFilled(ctx context.Context) error {
	for until := time.Now().Add(poolLimit); ; {
		n, err := b.poolReady(ctx)
		if err != nil || n > 0 {
			return err
		}
		if time.Now().After(until) {
			return fault.New(fault.Internal, "the pool was not filled within %v", poolLimit)
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// poolReady is how many VMs the pool has ready.
func (b *bench) poolReady(ctx context.Context) (int, error) {
	s, err := store.Open(ctx, store.Options{Path: filepath.Join(b.home(), "state", "leases.db")})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	leases, err := s.Leases(ctx, store.LeaseFilter{Kind: store.KindPool})
	if err != nil {
		return 0, err
	}
	n := 0
	for _, l := range leases {
		if l.Status == store.Running {
			n++
		}
	}
	return n, nil
}
