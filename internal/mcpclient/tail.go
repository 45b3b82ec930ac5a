package mcpclient

import (
	"strings"
	"sync"
)

// tail keeps the newest bytes written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
	max int
}

// Write implements io.Writer and never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - t.max; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(p), nil
}

// String is what is kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}

// last is the last line that is not empty.
func (t *tail) last() string {
	lines := strings.Split(strings.TrimSpace(t.String()), "\n")
	if l := lines[len(lines)-1]; l != "" {
		return l
	}
	return "it said nothing"
}
