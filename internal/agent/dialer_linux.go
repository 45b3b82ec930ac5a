package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"sandboxforge/internal/guest/guestv1"
)

// dialService is the Dialer service.
type dialService struct{ a *Agent }

const dialTimeout = 30 * time.Second

func (s dialService) Dial(ctx context.Context, stream *connect.BidiStream[guestv1.DialRequest, guestv1.DialResponse]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil || open.Network != "tcp" && open.Network != "unix" {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("the first message of Dial must open a tcp or unix address"))
	}
	d := net.Dialer{Timeout: dialTimeout}
	c, err := d.DialContext(ctx, open.Network, open.Address)
	if err != nil {
		return dialError(err)
	}
	defer c.Close()
	if err := stream.Send(&guestv1.DialResponse{}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()

	// Receive ends when the handler returns: the server closes the body.
	go func() {
		for {
			req, err := stream.Receive()
			if err != nil {
				if errors.Is(err, io.EOF) {
					if hc, ok := c.(interface{ CloseWrite() error }); ok {
						hc.CloseWrite() //nolint:errcheck // the peer may be gone
						return
					}
				}
				c.Close()
				return
			}
			if _, err := c.Write(req.GetData()); err != nil {
				return // the reading side reports what is to report
			}
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			if err := stream.Send(&guestv1.DialResponse{Data: buf[:n]}); err != nil {
				return err
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return connect.NewError(connect.CodeAborted, err)
		}
	}
}

// dialError keeps the two reasons that a caller acts on.
func dialError(err error) error {
	code := connect.CodeFailedPrecondition
	var ne net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		err = fmt.Errorf("ECONNREFUSED: %w", err)
	case errors.Is(err, syscall.ENOENT):
		err = fmt.Errorf("ENOENT: %w", err)
	case errors.As(err, &ne) && ne.Timeout():
		code = connect.CodeDeadlineExceeded
	}
	return connect.NewError(code, err)
}
