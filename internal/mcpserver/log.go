package mcpserver

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

// quiet takes the SDK's log one level down: it reports every connection as
// news and every client that leaves as an error.
type quiet struct{ h slog.Handler }

func (q quiet) lower(l slog.Level) slog.Level { return l - 4 }

func (q quiet) Enabled(ctx context.Context, l slog.Level) bool { return q.h.Enabled(ctx, q.lower(l)) }

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = q.lower(r.Level)
	return q.h.Handle(ctx, r)
}

func (q quiet) WithAttrs(a []slog.Attr) slog.Handler { return quiet{q.h.WithAttrs(a)} }
func (q quiet) WithGroup(n string) slog.Handler      { return quiet{q.h.WithGroup(n)} }

// LogWriter hands lines to w from a goroutine and drops them while w blocks:
// a client that does not read the server's stderr must not stop the server.
type LogWriter struct {
	w     io.Writer
	lines chan []byte
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once
}

// NewLogWriter starts the goroutine; Close ends it.
func NewLogWriter(w io.Writer) *LogWriter {
	l := &LogWriter{w: w, lines: make(chan []byte, 1024), stop: make(chan struct{}), done: make(chan struct{})}
	go l.run()
	return l
}

func (l *LogWriter) run() {
	defer close(l.done)
	for {
		select {
		case line := <-l.lines:
			_, _ = l.w.Write(line) // there is nowhere to report it
		case <-l.stop:
			for {
				select {
				case line := <-l.lines:
					_, _ = l.w.Write(line)
				default:
					return
				}
			}
		}
	}
}

// Write implements io.Writer; it never blocks and never fails.
func (l *LogWriter) Write(p []byte) (int, error) {
	select {
	case l.lines <- append([]byte(nil), p...):
	default:
	}
	return len(p), nil
}

// Close writes what is left, for up to a second.
func (l *LogWriter) Close() error {
	l.once.Do(func() { close(l.stop) })
	select {
	case <-l.done:
	case <-time.After(time.Second):
	}
	return nil
}

// NewLogger logs to w; format is text or json.
func NewLogger(w io.Writer, level slog.Level, format string) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
