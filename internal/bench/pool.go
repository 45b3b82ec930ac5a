package bench

import (
	"context"
	"errors"
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
func (b *bench) poolReady(ctx context.Context) (n int, err error) {
	leases, err := b.pool(ctx)
	for _, l := range leases {
		if l.Status == store.Running {
			n++
		}
	}
	return n, err
}

// pool is the VMs of the pool.
func (b *bench) pool(ctx context.Context) ([]store.Lease, error) {
	s, err := store.Open(ctx, store.Options{Path: filepath.Join(b.home(), "state", "leases.db")})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.Leases(ctx, store.LeaseFilter{Kind: store.KindPool})
}

// emptyPool ends the VMs that a server kept ready, also when ctx has ended: the
// server is gone, and they would wait for the next one for half an hour.
func (b *bench) emptyPool(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), poolLimit)
	defer cancel()
	return b.with(ctx, func(s *server) error {
		leases, err := b.pool(ctx)
		for _, l := range leases {
			err = errors.Join(err, s.destroy(ctx, l.InstanceID))
		}
		return err
	})
}
