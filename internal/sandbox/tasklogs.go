package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/store"
)

// Bounds of get_task_logs.
const (
	defaultTailLines = 500
	maxTailLines     = 100_000
	defaultLogBytes  = 64 << 10
	maxLogBytes      = 1 << 20
)

// GetTaskLogs reads a piece of a task's output at once, from the guest or,
// after the instance has ended, from what was kept of it.
func (s *Service) GetTaskLogs(ctx context.Context, r GetTaskLogsRequest) (*GetTaskLogsResult, error) {
	tail := orDefault(r.Tail, defaultTailLines)
	size := orDefault(r.MaxBytes, defaultLogBytes)
	switch {
	case tail < 1 || tail > maxTailLines:
		return nil, fault.New(fault.InvalidArgument, "tail is %d; it must be from 1 to %d", tail, maxTailLines)
	case size < 1 || size > maxLogBytes:
		return nil, fault.New(fault.InvalidArgument, "max_bytes is %d; it must be from 1 to %d", size, maxLogBytes)
	case r.Offset != nil && *r.Offset < 0:
		return nil, fault.New(fault.InvalidArgument, "offset is %d; it must be 0 or more", *r.Offset)
	}
	stream := r.Stream
	if stream == "" {
		stream = "both"
	}
	var streams []guest.Stream
	switch stream {
	case "stdout":
		streams = []guest.Stream{guest.Stdout}
	case "stderr":
		streams = []guest.Stream{guest.Stderr}
	case "both":
		streams = []guest.Stream{guest.Stdout, guest.Stderr}
		size = max(1, size/2)
		if r.Offset != nil {
			return nil, fault.New(fault.InvalidArgument, "offset needs stream stdout or stderr, because each has offsets of its own").
				Next("repeat the call with stream: \"stdout\"")
		}
	default:
		return nil, fault.New(fault.InvalidArgument, "stream is %q; it must be stdout, stderr or both", stream)
	}
	t, err := s.refresh(ctx, r.TaskID, 0)
	if err != nil {
		// The VM may have died just now: then what was kept is what there is.
		now, terr := s.store.Task(ctx, r.TaskID)
		if terr != nil || !now.HasTails {
			return nil, err
		}
		t = now
	}
	out := &GetTaskLogsResult{TaskID: t.TaskID, InstanceID: t.InstanceID, Tail: tail, Stream: stream}
	if r.Offset != nil {
		out.Tail = 0
	}
	var parts [2]logPiece
	for i, st := range streams {
		if parts[i], err = s.readLog(ctx, &t, st, r.Offset, size); err != nil {
			return nil, err
		}
		if r.Offset == nil {
			parts[i].data = tailLines(parts[i].data, tail)
		}
		out.TotalBytes += parts[i].total
		out.DroppedBytes += parts[i].dropped
	}
	out.Status = string(t.Status)
	if len(streams) == 1 {
		out.NextOffset = parts[0].next
		out.Logs, _ = toUTF8(parts[0].data)
		return out, nil
	}
	// Both: a header only where there is something to tell apart.
	o, _ := toUTF8(parts[0].data)
	e, _ := toUTF8(parts[1].data)
	switch {
	case e == "":
		out.Logs = o
	case o == "":
		out.Logs = "==> stderr <==\n" + e
	default:
		if o[len(o)-1] != '\n' {
			o += "\n"
		}
		out.Logs = "==> stdout <==\n" + o + "==> stderr <==\n" + e
	}
	return out, nil
}

// logPiece is a piece of one stream.
type logPiece struct {
	data                 []byte
	next, total, dropped int64
}

// readLog reads from offset, or the newest bytes if offset is nil. Where the
// guest can no longer be asked it serves what was kept, and t is the row as it
// is then.
func (s *Service) readLog(ctx context.Context, t *store.Task, st guest.Stream, offset *int64, size int64) (logPiece, error) {
	if !t.HasTails {
		p, err := s.readGuestLog(ctx, *t, st, offset, size)
		if err == nil {
			return p, nil
		}
		// The instance may have ended right now, with its tails kept.
		now, terr := s.store.Task(ctx, t.TaskID)
		if terr != nil || !now.HasTails && !fault.Is(err, fault.InstanceTerminal) && (!fault.Is(err, fault.InstanceLost) || now.Status == store.TaskRunning) {
			return logPiece{}, err
		}
		*t = now
	}
	stdout, stderr, err := s.store.Tails(ctx, t.TaskID)
	if err != nil {
		return logPiece{}, err
	}
	data, total := stdout, t.StdoutBytes
	if st == guest.Stderr {
		data, total = stderr, t.StderrBytes
	}
	p := cutTail(data, total, offset, size)
	if offset != nil {
		p.wholeCharacters()
	}
	return p, nil
}

func (s *Service) readGuestLog(ctx context.Context, t store.Task, st guest.Stream, offset *int64, size int64) (logPiece, error) {
	l, g, err := s.live(ctx, t.InstanceID)
	if err != nil {
		return logPiece{}, err
	}
	rr := guest.ReadRequest{Stream: st, MaxBytes: uint64(size), TailBytes: uint64(size)}
	if offset != nil {
		rr.TailBytes, rr.Offset = 0, uint64(*offset)
	}
	work, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	c, err := g.Read(work, t.TaskID, rr)
	switch {
	case errors.Is(err, guest.ErrNotFound):
		return logPiece{}, nil // never started, or forgotten
	case err != nil:
		return logPiece{}, s.silent(ctx, l, "reading the task's output", err)
	}
	p := logPiece{c.Data, int64(c.NextOffset), int64(c.TotalBytes), int64(c.Dropped)}
	if offset != nil {
		p.wholeCharacters()
	}
	return p, nil
}

// wholeCharacters leaves a character that is cut at the end of a piece to the
// next piece, unless that would leave nothing.
func (p *logPiece) wholeCharacters() {
	if p.next >= p.total && len(p.data) < 4 {
		return
	}
	for i := 1; i <= min(3, len(p.data)-1); i++ {
		if b := p.data[len(p.data)-i:]; utf8.RuneStart(b[0]) {
			if !utf8.FullRune(b) {
				p.data, p.next = p.data[:len(p.data)-i], p.next-int64(i)
			}
			return
		}
	}
}

// cutTail serves a read from the kept end of a stream of total bytes.
func cutTail(data []byte, total int64, offset *int64, size int64) logPiece {
	total = max(total, int64(len(data)))
	first := total - int64(len(data))
	p := logPiece{data: data, next: total, total: total}
	if offset == nil {
		if over := int64(len(data)) - size; over > 0 {
			p.data = data[over:]
			first += over
		}
		p.dropped = total - int64(len(p.data))
		return p
	}
	at := min(*offset, total)
	if at < first {
		p.dropped = first - at
		at = first
	}
	rest := data[at-first:]
	if int64(len(rest)) > size {
		rest = rest[:size]
	}
	p.data, p.next = bytes.Clone(rest), at+int64(len(rest))
	return p
}

// ConsoleRequest asks for bytes of a guest's console.
type ConsoleRequest struct {
	InstanceID string `json:"instance_id"`
	MaxBytes   int64  `json:"max_bytes,omitempty"` // 0: 64 KiB
}

// ConsoleResult is the newest part of a guest's console.
type ConsoleResult struct {
	InstanceID string `json:"instance_id"`
	Data       []byte `json:"data"`
	Ended      bool   `json:"ended"`
}

// Console returns the newest bytes of an instance's console, also while it
// still boots. It does not wait.
func (s *Service) Console(ctx context.Context, r ConsoleRequest) (*ConsoleResult, error) {
	l, err := s.store.Lease(ctx, r.InstanceID)
	if err != nil {
		return nil, err
	}
	if l.Status.Terminal() {
		return nil, fault.New(fault.InstanceTerminal, "instance %s is %s and its console is gone with it", l.InstanceID, l.Status)
	}
	size := int(r.MaxBytes)
	if size <= 0 || size > maxLogBytes {
		size = defaultLogBytes
	}
	c, err := s.links.get(ctx, l.BackendInstanceName)
	if err != nil {
		return nil, s.unreachable(ctx, l, err)
	}
	b, err := c.Console(ctx, size)
	if err != nil {
		return nil, fmt.Errorf("console of %s: %w", l.InstanceID, err)
	}
	return &ConsoleResult{InstanceID: l.InstanceID, Data: b}, nil
}
