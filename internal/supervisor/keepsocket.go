package supervisor

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"
)

// keepSocket puts the socket back when its file is gone, until ctx ends. Run
// directories are swept by others (the end of a login session, cleaners of
// /tmp), and a VM whose socket has no name could be neither used nor stopped.
// What stands in the socket's place is left alone.
func (v *server) keepSocket(ctx context.Context, path string) {
	tick := time.NewTicker(v.s.opts.Tuning.SocketCheck)
	defer tick.Stop()
	told := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		l, err := relisten(ctx, path, v)
		if err != nil {
			if !told {
				v.s.log.Warn("the socket is gone and cannot be put back yet", "path", path, "error", err)
			}
			told = true
			continue
		}
		told = false
		v.s.log.Warn("the socket was gone and has been put back", "path", path)
		v.wg.Go(func() { v.http.Serve(l) }) //nolint:errcheck // it ends with the server; the first listener's end is what counts
	}
}

func relisten(ctx context.Context, path string, v *server) (net.Listener, error) {
	if err := privateDir(filepath.Dir(path), false); err != nil {
		return nil, err
	}
	return listen(ctx, path, v.s.log)
}
