package docker

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// LastLog is the last lines of what a container printed, on both streams, in
// at most 64 KiB of each.
func (e *Engine) LastLog(ctx context.Context, container string, lines int) (string, error) {
	var kept [2][]byte
	err := e.Logs(ctx, Logs{Container: container, Tail: lines}, func(stream int, data []byte) {
		k := &kept[stream-1]
		*k = append(*k, data[:min(len(data), maxExecOutput-len(*k))]...)
	})
	if err != nil {
		return "", err
	}
	out, errs := string(kept[0]), string(kept[1])
	all := strings.Split(strings.TrimRight(out+errs, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n"), nil
}

// CPUTime is the processor time that a running container has used; 0 if the
// engine cannot tell.
func (e *Engine) CPUTime(ctx context.Context, container string) (time.Duration, error) {
	var r struct {
		CPU struct {
			Usage struct {
				Total uint64 `json:"total_usage"`
			} `json:"cpu_usage"`
		} `json:"cpu_stats"`
	}
	err := e.do(ctx, http.MethodGet, "/containers/"+url.PathEscape(container)+"/stats?stream=false&one-shot=true", nil, &r)
	return time.Duration(min(r.CPU.Usage.Total, 1<<62)), err
}
