package sandbox

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// progressEvery is the pace at which a waiting client hears of a running
// command: often enough that no client gives up, seldom enough to be cheap.
const progressEvery = time.Second

// newest reports a running command's newest output line as progress, and that
// it still runs where it prints nothing.
type newest struct {
	mu   sync.Mutex
	line string
	done chan struct{}
	wg   sync.WaitGroup
}

// newestLine starts reporting to ctx's sink until stop.
func newestLine(ctx context.Context, command string) *newest {
	n := &newest{done: make(chan struct{})}
	if ctx.Value(progressKey{}) == nil {
		return n
	}
	began := time.Now()
	n.wg.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-n.done:
				return
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			n.mu.Lock()
			line := n.line
			n.mu.Unlock()
			secs := time.Since(began).Seconds()
			if line == "" {
				line = fmt.Sprintf("running for %.0f s: %s", secs, lastLine([]byte(command)))
			}
			report(ctx, Progress{Stage: "command", Message: line, Done: secs})
		}
	})
	return n
}

func (n *newest) output(b []byte) {
	if line := lastLine(b); line != "" {
		n.mu.Lock()
		n.line = line
		n.mu.Unlock()
	}
}

func (n *newest) stop() {
	close(n.done)
	n.wg.Wait()
}
