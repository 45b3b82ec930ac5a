package mcpserver

import (
	"context"
	"encoding/json"

	"sandboxforge/internal/sandbox"
)

// maxLogTokens leaves room for the other fields of the result.
const maxLogTokens = maxResultTokens - 1000

// taskLogs is Service.GetTaskLogs with a piece small enough for a client. A
// log must not be cut afterwards as other results are: next_offset would then
// point behind what the client never saw.
func taskLogs(s Service, ctx context.Context, r sandbox.GetTaskLogsRequest) (*sandbox.GetTaskLogsResult, error) {
	for {
		res, err := s.GetTaskLogs(ctx, r)
		if err != nil {
			return nil, err
		}
		raw, err := json.Marshal(res.Logs)
		if err != nil || estimateTokens(string(raw)) <= maxLogTokens {
			return res, err
		}
		size := int64(len(res.Logs))
		if r.MaxBytes != nil {
			size = min(size, *r.MaxBytes)
		}
		if size /= 2; size < 1 {
			return res, nil
		}
		r.MaxBytes = &size
	}
}
