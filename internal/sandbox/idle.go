package sandbox

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sandboxforge/internal/guest"
)

// idleLimit bounds the wait for idleness; a guest that is still busy then is
// saved as it is.
const idleLimit = 30 * time.Second

// A guest is idle when it used less than a tenth of its processors in each of
// some looks in a row.
const (
	idleLook  = 500 * time.Millisecond
	idleLooks = 3
)

// awaitIdle returns when the guest is idle, or has not become so within
// idleLimit. It looks through the agent: a program that looks costs an emulated
// guest on a busy host that tenth by itself.
func awaitIdle(ctx context.Context, g *guest.Client) error {
	ctx, cancel := context.WithTimeout(ctx, idleLimit)
	defer cancel()
	tick := time.NewTicker(idleLook)
	defer tick.Stop()
	var last cpuTimes
	for quiet := 0; quiet < idleLooks; {
		text, err := g.ReadFile(ctx, "/proc/stat", 1<<20)
		if err != nil {
			return err
		}
		now, err := parseStat(string(text))
		if err != nil {
			return err
		}
		if since := now.sub(last); last.all != 0 && since.busy*10 <= since.all {
			quiet++
		} else {
			quiet = 0
		}
		last = now
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// cpuTimes are the ticks that all processors of a guest have had since it
// booted.
type cpuTimes struct{ busy, all uint64 }

func (t cpuTimes) sub(o cpuTimes) cpuTimes { return cpuTimes{t.busy - o.busy, t.all - o.all} }

// parseStat reads the first line of /proc/stat, see proc_stat(5). Waiting for a
// disk is being busy: what is saved should have been written.
func parseStat(text string) (t cpuTimes, err error) {
	line, _, _ := strings.Cut(text, "\n")
	var user, nice, system, idle, iowait, irq, softirq, steal uint64
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal); err != nil {
		return t, fmt.Errorf("/proc/stat begins with %.80q: %w", line, err)
	}
	t.busy = user + nice + system + iowait + irq + softirq + steal
	t.all = t.busy + idle
	return t, nil
}
