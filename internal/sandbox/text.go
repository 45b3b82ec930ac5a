package sandbox

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// counted is "3 of 10 files" or "3 files" where the total is not known.
func counted(done, total int64, unit string) string {
	if total > 0 {
		return fmt.Sprintf("%d of %d %s", done, total, unit)
	}
	return fmt.Sprintf("%d %s", done, unit)
}

// clip keeps the head and the tail of a stream within a bound, whatever
// passes through it. It is for one goroutine.
type clip struct {
	limit int // of bytes kept; the head gets half
	head  []byte
	tail  []byte // a ring once full
	next  int
	total int64
	gap   bool // the guest's spool had lost bytes: the head is complete
}

func newClip(limit int) *clip { return &clip{limit: limit} }

func (c *clip) write(p []byte) {
	c.total += int64(len(p))
	if room := c.limit/2 - len(c.head); room > 0 && !c.gap {
		n := min(room, len(p))
		c.head = append(c.head, p[:n]...)
		p = p[n:]
	}
	size := c.limit - c.limit/2
	if size == 0 {
		return
	}
	if over := len(p) - size; over > 0 {
		p = p[over:]
	}
	if grow := min(size-len(c.tail), len(p)); grow > 0 {
		c.tail = append(c.tail, p[:grow]...)
		p = p[grow:]
	}
	for len(p) > 0 {
		n := copy(c.tail[c.next:], p)
		p = p[n:]
		c.next = (c.next + n) % size
	}
}

// lost notes bytes that were dropped before they came here. What follows
// belongs to the tail.
func (c *clip) lost(n int64) {
	c.total += n
	c.gap = true
}

// text returns what was kept as valid UTF-8, with a line that says how much is
// left out between head and tail. ok is false if bytes had to be replaced.
func (c *clip) text() (s string, truncated, ok bool) {
	tail := append(append([]byte{}, c.tail[c.next:]...), c.tail[:c.next]...)
	left := c.total - int64(len(c.head)) - int64(len(tail))
	if left <= 0 {
		s, ok = toUTF8(append(append([]byte{}, c.head...), tail...))
		return s, false, ok
	}
	// A cut inside a character is no damage of the output.
	head := c.head
	for i := 1; i <= min(3, len(head)); i++ {
		if b := head[len(head)-i:]; utf8.RuneStart(b[0]) {
			if !utf8.FullRune(b) {
				left += int64(i)
				head = head[:len(head)-i]
			}
			break
		}
	}
	for i := 0; i < 3 && len(tail) > 0 && !utf8.RuneStart(tail[0]); i++ {
		left++
		tail = tail[1:]
	}
	h, ok1 := toUTF8(head)
	t, ok2 := toUTF8(tail)
	return fmt.Sprintf("%s\n[... %d bytes left out; get_task_logs has them ...]\n%s", h, left, t), true, ok1 && ok2
}

// toUTF8 replaces what is not UTF-8, and NUL, which JSON consumers choke on.
func toUTF8(b []byte) (string, bool) {
	if utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 {
		return string(b), true
	}
	s := strings.ToValidUTF8(string(b), "\uFFFD")
	return strings.ReplaceAll(s, "\x00", "\u2400"), false
}

// lastLine is the newest complete or begun line with something in it, fit for
// a progress message.
func lastLine(b []byte) string {
	b = bytes.TrimRight(b, " \t\r\n")
	if i := bytes.LastIndexAny(b, "\r\n"); i >= 0 {
		b = b[i+1:]
	}
	if len(b) > 200 {
		b = b[:200]
	}
	s, _ := toUTF8(b)
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' {
			return -1
		}
		return r
	}, s)
}

// tailLines is the last n lines of b.
func tailLines(b []byte, n int) []byte {
	if n <= 0 {
		return nil
	}
	end := len(b)
	if end > 0 && b[end-1] == '\n' {
		end--
	}
	for i := 0; i < n; i++ {
		j := bytes.LastIndexByte(b[:end], '\n')
		if j < 0 {
			return b
		}
		end = j
	}
	return b[end+1:]
}
