package sandbox

import (
	"context"
	"slices"
	"sync"
)

// shared is work that runs once on the service's own context while any number
// of callers wait for it; each may leave at any time.
type shared[T any] struct {
	done chan struct{}
	val  T // valid after done
	err  error

	mu    sync.Mutex
	sinks []*func(Progress)
}

func newShared[T any]() *shared[T] { return &shared[T]{done: make(chan struct{})} }

// report passes on what the work does.
func (w *shared[T]) report(stage, message string) {
	w.mu.Lock()
	sinks := slices.Clone(w.sinks)
	w.mu.Unlock()
	for _, s := range sinks {
		(*s)(Progress{Stage: stage, Message: message})
	}
}

// wait returns the work's result, or ctx's cause if that ends first. ctx's
// sink is told meanwhile.
func (w *shared[T]) wait(ctx context.Context) (T, error) {
	sink := func(pr Progress) { report(ctx, pr) }
	w.mu.Lock()
	w.sinks = append(w.sinks, &sink)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.sinks = slices.DeleteFunc(w.sinks, func(s *func(Progress)) bool { return s == &sink })
	}()
	select {
	case <-w.done:
		return w.val, w.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
