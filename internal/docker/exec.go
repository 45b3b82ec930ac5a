package docker

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// maxExecOutput bounds what Exec keeps of each stream.
const maxExecOutput = 64 << 10

// Exec is a short command in a container, for probes: no input, bounded output.
type Exec struct {
	Container string
	Argv      []string
	Env       []string // added to the container's
	User      string   // "": the container's
}

// ExecResult is how it ended.
type ExecResult struct {
	ExitCode       int
	Stdout, Stderr string // the first 64 KiB
}

// Exec runs a command in a running container and waits for it. When ctx ends
// the call does; the command itself may go on.
func (e *Engine) Exec(ctx context.Context, x Exec) (ExecResult, error) {
	var made struct {
		ID string `json:"Id"`
	}
	in := map[string]any{"Cmd": x.Argv, "Env": x.Env, "User": x.User, "AttachStdout": true, "AttachStderr": true}
	if err := e.do(ctx, http.MethodPost, "/containers/"+url.PathEscape(x.Container)+"/exec", in, &made); err != nil {
		return ExecResult{}, err
	}
	resp, err := e.send(ctx, http.MethodPost, "/exec/"+url.PathEscape(made.ID)+"/start", map[string]any{"Detach": false, "Tty": false})
	if err != nil {
		return ExecResult{}, err
	}
	var r ExecResult
	r.Stdout, r.Stderr, err = demultiplex(resp.Body)
	resp.Body.Close()
	if err != nil {
		return ExecResult{}, fmt.Errorf("output of exec in %s: %w", x.Container, err)
	}
	var end struct {
		Running  bool
		ExitCode int
	}
	if err := e.do(ctx, http.MethodGet, "/exec/"+url.PathEscape(made.ID)+"/json", nil, &end); err != nil {
		return ExecResult{}, err
	}
	if end.Running {
		return ExecResult{}, fmt.Errorf("exec in %s closed its output and goes on", x.Container)
	}
	r.ExitCode = end.ExitCode
	return r, nil
}

// demultiplex reads the engine's framing of two streams: a byte that names the
// stream, three zeros, the length in four bytes, the data.
func demultiplex(r io.Reader) (stdout, stderr string, err error) {
	var kept [2][]byte
	for {
		var head [8]byte
		if _, err := io.ReadFull(r, head[:]); err == io.EOF {
			return string(kept[0]), string(kept[1]), nil
		} else if err != nil {
			return "", "", err
		}
		if head[0] < 1 || head[0] > 2 {
			return "", "", fmt.Errorf("frame of stream %d", head[0])
		}
		n := int64(binary.BigEndian.Uint32(head[4:]))
		into := &kept[head[0]-1]
		room := min(n, int64(maxExecOutput-len(*into)))
		data, err := io.ReadAll(io.LimitReader(r, room))
		if err != nil {
			return "", "", err
		}
		*into = append(*into, data...)
		if int64(len(data)) < room {
			return "", "", io.ErrUnexpectedEOF
		}
		if _, err := io.CopyN(io.Discard, r, n-room); err != nil {
			return "", "", io.ErrUnexpectedEOF
		}
	}
}
