package backends

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
)

// floorLimit bounds one start of a bare VM.
const floorLimit = 2 * time.Minute

// Floor starts a VM in a saved state in this very process, with neither
// server, lease nor supervisor, and returns when a command has run in it: the
// least that a clone can take on this host. agent asks its agent once more,
// stop ends the VM and removes it. It is for measurements.
func (s *Set) Floor(ctx context.Context, state string, round int) (agent func(context.Context) error, stop func() error, err error) {
	sel, err := s.ByName("qemu")
	if err != nil {
		return nil, nil, err
	}
	keeper, ok := sel.Backend.(backend.StateKeeper)
	if !ok {
		return nil, nil, fault.New(fault.UnsupportedByBackend, "the backend %s has no saved states", sel.Backend.Name())
	}
	saved, err := keeper.CheckState(ctx, state)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, floorLimit)
	defer cancel()
	spec := saved.Spec
	spec.Name, spec.From, spec.Hostname = fmt.Sprintf("floor-%d-%d", os.Getpid(), round), state, ""
	if err := sel.Backend.Create(ctx, spec); err != nil {
		return nil, nil, err
	}
	var conn *guest.Conn
	stop = func() error {
		if conn != nil {
			conn.Close()
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), floorLimit)
		defer cancel()
		return sel.Backend.Delete(ctx, spec.Name)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	m, err := sel.Backend.Start(ctx, spec.Name, backend.StartOptions{})
	if err != nil {
		return nil, nil, err
	}
	stream, err := m.DialAgent(ctx)
	if err != nil {
		return nil, nil, err
	}
	if conn, err = guest.Connect(ctx, stream); err != nil {
		return nil, nil, err
	}
	c := conn.Client()
	if _, err := c.Run(ctx, guest.NewID("floor-"), guest.Spec{Command: "true"}, nil); err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context) error {
		_, err := c.Ping(ctx)
		return err
	}, stop, nil
}
