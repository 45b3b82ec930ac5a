package qemu

import (
	"context"
	"io"

	"sandboxforge/internal/guest"
)

// waitAgent asks the real agent for the guest's boot id.
func waitAgent(ctx context.Context, stream io.ReadWriteCloser) (string, error) {
	c, err := guest.Connect(ctx, stream)
	if err != nil {
		return "", err
	}
	defer c.Close()
	p, err := c.Client().Ping(ctx)
	return p.BootID, err
}
