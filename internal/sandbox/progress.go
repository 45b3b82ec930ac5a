package sandbox

import "context"

// Progress is one step of a long operation, for a person or a client that
// waits. Total is 0 where the end is not known.
type Progress struct {
	Stage   string // a short word: boot, docker, sync, command
	Message string // one line
	Done    float64
	Total   float64
}

type progressKey struct{}

// WithProgress returns a context whose operations tell sink what they do. The
// sink must not block and may be called from several goroutines.
func WithProgress(ctx context.Context, sink func(Progress)) context.Context {
	return context.WithValue(ctx, progressKey{}, sink)
}

// report tells the context's sink, if it has one.
func report(ctx context.Context, p Progress) {
	if sink, ok := ctx.Value(progressKey{}).(func(Progress)); ok && sink != nil {
		sink(p)
	}
}
