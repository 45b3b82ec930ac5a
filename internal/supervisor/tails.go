package supervisor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"sandboxforge/internal/guest/guestv1"
)

// tailReaders is how many tails are read at once.
const tailReaders = 4

// askPowerOff lets the guest shut down in order: not every guest acts on the
// power button. The hypervisor's own stop follows in any case.
func (s *supervisor) askPowerOff(ctx context.Context) {
	l := s.currentLink()
	if l == nil || l.current() == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := newGuestCalls(l).system.PowerOff(ctx, &guestv1.PowerOffRequest{}); err != nil {
		s.log.Debug("power-off by the agent", "error", err)
	}
}

// collectTails reads what the guest's processes last printed, newest processes
// first where not all fit. The second result says what is missing.
func (s *supervisor) collectTails() ([]TaskEnd, string) {
	l := s.currentLink()
	if l == nil || l.current() == nil {
		return nil, "the guest agent could not be reached"
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.Tuning.TailTimeout)
	defer cancel()
	calls := newGuestCalls(l)
	list, err := calls.processes.List(ctx, &guestv1.ListRequest{})
	if err != nil {
		return nil, fmt.Sprintf("the guest's processes could not be listed: %v", err)
	}
	missing := ""
	ps := slices.DeleteFunc(list.Processes, func(p *guestv1.Process) bool {
		return p == nil || len(p.Id) > 64 || printable([]byte(p.Id), 64) != p.Id || p.Id == ""
	})
	slices.SortStableFunc(ps, func(a, b *guestv1.Process) int { return cmp.Compare(b.StartedUnixNs, a.StartedUnixNs) })
	if len(ps) > maxEndTasks {
		missing = fmt.Sprintf("%d older processes were left out", len(ps)-maxEndTasks)
		ps = ps[:maxEndTasks]
	}
	ends := make([]TaskEnd, len(ps))
	budget := maxTailsBytes
	var wg sync.WaitGroup
	var mu sync.Mutex // of the TailErrors: two readers share one
	slots := make(chan struct{}, tailReaders)
	for i, p := range ps {
		e := &ends[i]
		*e = taskEnd(p)
		for _, t := range []struct {
			stream guestv1.Stream
			total  uint64
			into   *[]byte
		}{{guestv1.Stream_STREAM_STDOUT, p.StdoutBytes, &e.StdoutTail}, {guestv1.Stream_STREAM_STDERR, p.StderrBytes, &e.StderrTail}} {
			want := int(min(t.total, tailBytes))
			if p.Status == guestv1.ProcessStatus_PROCESS_STATUS_RUNNING {
				want = tailBytes // it may have written since
			}
			if want == 0 {
				continue
			}
			if budget < want {
				mu.Lock()
				e.TailError = "left out: the record's bound is reached"
				mu.Unlock()
				continue
			}
			budget -= want
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				r, err := calls.processes.Read(ctx, &guestv1.ReadRequest{Id: p.Id, Stream: t.stream, TailBytes: uint64(want), MaxBytes: uint64(want)})
				if err != nil {
					mu.Lock()
					e.TailError = printable([]byte(err.Error()), 200)
					mu.Unlock()
					return
				}
				*t.into = r.Data[max(0, len(r.Data)-want):]
			})
		}
	}
	wg.Wait()
	return ends, missing
}

func taskEnd(p *guestv1.Process) TaskEnd {
	e := TaskEnd{
		ID: printable([]byte(p.Id), 64), ExitCode: p.ExitCode, Signal: p.Signal, TimedOut: p.TimedOut,
		Error: printable([]byte(p.ErrorMessage), 500), StartedAt: unixNs(p.StartedUnixNs), FinishedAt: unixNs(p.FinishedUnixNs),
		StdoutTotal: p.StdoutBytes, StderrTotal: p.StderrBytes,
	}
	switch p.Status {
	case guestv1.ProcessStatus_PROCESS_STATUS_RUNNING:
		e.Status = "running"
	case guestv1.ProcessStatus_PROCESS_STATUS_EXITED:
		e.Status = "exited"
	case guestv1.ProcessStatus_PROCESS_STATUS_SIGNALED:
		e.Status = "signaled"
	default:
		e.Status = "lost"
	}
	return e
}

// unixNs is the zero time for zero.
func unixNs(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}
