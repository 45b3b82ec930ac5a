package docker

import (
	"context"
	"encoding/binary"
	"errors"
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
	in := map[string]any{"Cmd": x.Argv, "Env": x.Env, "AttachStdout": true, "AttachStderr": true}
	if err := e.do(ctx, http.MethodPost, "/containers/"+url.PathEscape(x.Container)+"/exec", in, &made); err != nil {
		return ExecResult{}, err
	}
	resp, err := e.send(ctx, http.MethodPost, "/exec/"+url.PathEscape(made.ID)+"/start", map[string]any{"Detach": false, "Tty": false})
	if err != nil {
		return ExecResult{}, err
	}
	var kept [2][]byte
	err = demultiplex(resp.Body, func(stream int, data []byte) {
		k := &kept[stream-1]
		*k = append(*k, data[:min(len(data), maxExecOutput-len(*k))]...)
	})
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
	return ExecResult{ExitCode: end.ExitCode, Stdout: string(kept[0]), Stderr: string(kept[1])}, nil
}

// demultiplex reads the engine's framing of two streams: a byte that names the
// stream, three zeros, the length in four bytes, the data. A frame is handed on
// in pieces, so that its length, which comes from the guest, costs nothing.
func demultiplex(r io.Reader, on func(stream int, data []byte)) error {
	buf := make([]byte, 32<<10)
	for {
		var head [8]byte
		if _, err := io.ReadFull(r, head[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if head[0] != StreamStdout && head[0] != StreamStderr {
			return fmt.Errorf("frame of stream %d", head[0])
		}
		for left := int(binary.BigEndian.Uint32(head[4:])); left > 0; {
			n, err := r.Read(buf[:min(left, len(buf))])
			if n > 0 {
				on(int(head[0]), buf[:n])
				left -= n
			}
			if err != nil && left > 0 {
				if errors.Is(err, io.EOF) {
					err = io.ErrUnexpectedEOF
				}
				return err
			}
		}
	}
}
