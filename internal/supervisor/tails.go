package supervisor

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"sandboxforge/internal/guest"
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
	if err := guest.NewClient(l).PowerOff(ctx); err != nil {
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
	calls := guest.NewClient(l)
	ps, err := calls.List(ctx)
	if err != nil {
		return nil, fmt.Sprintf("the guest's processes could not be listed: %v", err)
	}
	missing := ""
	ps = slices.DeleteFunc(ps, func(p guest.Process) bool { return p.ID == "" || printable([]byte(p.ID), 64) != p.ID })
	slices.SortStableFunc(ps, func(a, b guest.Process) int { return b.StartedAt.Compare(a.StartedAt) })
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
			stream guest.Stream
			total  uint64
			into   *[]byte
		}{{guest.Stdout, p.StdoutBytes, &e.StdoutTail}, {guest.Stderr, p.StderrBytes, &e.StderrTail}} {
			want := int(min(t.total, tailBytes))
			if !p.Ended() {
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
				r, err := calls.Read(ctx, p.ID, guest.ReadRequest{Stream: t.stream, TailBytes: uint64(want), MaxBytes: uint64(want)})
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

func taskEnd(p guest.Process) TaskEnd {
	return TaskEnd{
		ID: p.ID, Status: string(p.Status), ExitCode: int32(p.ExitCode), Signal: int32(p.Signal), TimedOut: p.TimedOut,
		Error: printable([]byte(p.ErrorMessage), 500), StartedAt: p.StartedAt.UTC(), FinishedAt: p.FinishedAt.UTC(),
		StdoutTotal: p.StdoutBytes, StderrTotal: p.StderrBytes,
	}
}

// unixNs is the zero time for zero.
func unixNs(ns int64) time.Time {
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}
