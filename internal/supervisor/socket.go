package supervisor

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"time"

	"sandboxforge/internal/fault"
)

// listen takes the socket's path, which the caller may do only while it holds
// the directory's lock. What a dead supervisor left there is removed; what
// somebody serves is left alone.
func listen(ctx context.Context, path string, log *slog.Logger) (net.Listener, error) {
	if err := checkSocketPath(path); err != nil {
		return nil, err
	}
	switch st, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case st.Mode().Type()&(fs.ModeDir|fs.ModeSymlink) != 0 || st.Mode().IsRegular() && st.Size() > 0:
		return nil, fault.New(fault.InvalidArgument, "%s is in the way: it is not a socket", path).
			Next("remove it, or use another run directory")
	default:
		dctx, cancel := context.WithTimeout(ctx, time.Second)
		c, err := (&net.Dialer{}).DialContext(dctx, "unix", path)
		cancel()
		if err == nil || !notRunning(err) {
			if err == nil {
				c.Close()
			}
			return nil, fault.New(fault.InvalidArgument, "another process serves %s", path).
				Because("two state directories share one run directory, or a foreign process took the name").
				Next("give each state directory a run directory of its own")
		}
		log.Info("removing the socket of a dead supervisor", "path", path)
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(true)
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return &peerListener{UnixListener: l, log: log}, nil
}

// peerListener accepts connections of our own user only.
type peerListener struct {
	*net.UnixListener
	log *slog.Logger
}

// Accept implements net.Listener.
func (l *peerListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := peerUID(c)
		if err == nil && uid == os.Geteuid() {
			return c, nil
		}
		l.log.Warn("connection refused", "peer_uid", uid, "error", err)
		c.Close()
	}
}
