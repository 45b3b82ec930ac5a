package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sandboxforge/internal/link"
)

// SocketPath is where the agent of a guest without a virtio port listens: the
// host reaches it through a relay that it starts over ssh.
const SocketPath = "/run/sandboxforge/agent.sock"

// relayWait bounds a relay's wait for the agent's socket: an agent that is
// started anew has it in a moment.
const relayWait = 10 * time.Second

// listenSocket listens on a socket that only its own user can open, in the
// place of one that an earlier agent left.
func listenSocket(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	return l, os.Chmod(path, 0o600)
}

// ServeSocket serves a link on the newest connection of a unix socket: there is
// one host, and a connection takes the place of the one before it, as a HELLO
// does on a port.
func (a *Agent) ServeSocket(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	end := func() {}
	defer func() { end() }()
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		end()
		cctx, cancel := context.WithCancel(ctx)
		end = cancel
		wg.Go(func() {
			defer cancel()
			a.Serve(cctx, link.NewListener(c)) //nolint:errcheck // its stream has ended
		})
	}
}

// Relay connects in and out with the agent's socket until either side ends. It
// is all that runs in an ssh session of the host, so it carries bytes and knows
// nothing of them. It waits for an agent that is being started.
func Relay(ctx context.Context, socket string, in io.Reader, out io.Writer) error {
	c, err := dialSocket(ctx, socket)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	// The end of either direction is the end of both: a link has no half of
	// its own, and in may be a terminal that cannot be closed from here.
	done := make(chan error, 2)
	go func() { _, err := io.Copy(c, in); done <- err }()
	go func() { _, err := io.Copy(out, c); done <- err }()
	err = <-done
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func dialSocket(ctx context.Context, socket string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, relayWait)
	defer cancel()
	var d net.Dialer
	for {
		c, err := d.DialContext(ctx, "unix", socket)
		if err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the agent does not listen: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
