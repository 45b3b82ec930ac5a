package docker

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
)

// Logs is what of a container's output is asked for.
type Logs struct {
	Container string
	TTY       bool // the container has a terminal: one stream without framing
	Tail      int  // last lines
	Follow    bool // go on with what comes, until the container or ctx ends
	Since     string
}

// Stream names in Logs' callback.
const (
	StreamStdout = 1
	StreamStderr = 2
)

// Logs hands a container's output to on, piece by piece. A context that ends
// ends it, with the context's error.
func (e *Engine) Logs(ctx context.Context, l Logs, on func(stream int, data []byte)) error {
	q := url.Values{"stdout": {"1"}, "stderr": {"1"}, "tail": {strconv.Itoa(l.Tail)}}
	if l.Follow {
		q.Set("follow", "1")
	}
	if l.Since != "" {
		q.Set("since", l.Since)
	}
	resp, err := e.send(ctx, http.MethodGet, "/containers/"+url.PathEscape(l.Container)+"/logs?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if !l.TTY {
		return demultiplex(resp.Body, on)
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			on(StreamStdout, buf[:n])
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
