package supervisor

import (
	"io"
	"log/slog"
	"os"
	"sync"
)

// maxLogBytes bounds supervisor.log; the previous part is kept as
// supervisor.log.1.
const maxLogBytes = 1 << 20

// logWriter is a file that is moved aside when it grows too large. Standard
// error follows it, so that a panic is found in the newest file.
type logWriter struct {
	mu    sync.Mutex
	path  string
	f     *os.File
	size  int64
	limit int64
	// redirect is told about each new file; may be nil.
	redirect func(*os.File) error
}

func openLog(path string, redirect func(*os.File) error) (*logWriter, error) {
	w := &logWriter{path: path, limit: maxLogBytes, redirect: redirect}
	if err := w.open(); err != nil {
		return nil, err
	}
	return w, nil
}

func (w *logWriter) open() error {
	f, err := os.OpenFile(w.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	if w.redirect != nil {
		if err := w.redirect(f); err != nil {
			f.Close()
			return err
		}
	}
	w.f, w.size = f, st.Size()
	return nil
}

// Write implements io.Writer.
func (w *logWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.size > 0 && w.size+int64(len(b)) > w.limit {
		w.rotate()
	}
	n, err := w.f.Write(b)
	w.size += int64(n)
	return n, err
}

// rotate keeps the old file if it can, and room in any case.
func (w *logWriter) rotate() {
	old := w.f
	if os.Rename(w.path, w.path+".1") == nil && w.open() == nil {
		old.Close()
		return
	}
	// Windows does not rename open files.
	if old.Truncate(0) == nil {
		w.size = 0
	}
}

// Close implements io.Closer.
func (w *logWriter) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.f.Close()
}

func newLogger(w io.Writer, level string) *slog.Logger {
	var l slog.Level
	if l.UnmarshalText([]byte(level)) != nil {
		l = slog.LevelInfo
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l}))
}
