//go:build linux

package qemu

import (
	"bytes"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// Bounds of what is kept of a console, in bytes. A guest may write without
// end.
const (
	consoleMemory = 64 << 10
	consoleLogMax = 1 << 20 // then the file becomes console.log.old
	consoleLine   = 1 << 10 // longer lines are matched in part
)

// bootTrouble are the texts on the console after which a boot does not
// succeed. They are matched within one line. Emulated boots on several threads
// run into the middle group now and then, while the kernel patches its text.
var bootTrouble = [][]byte{
	[]byte(panicText),
	[]byte("sandboxforge-init: fatal: "),

	[]byte("BUG: unable to handle"),
	[]byte("BUG: kernel NULL pointer"),
	[]byte("kernel BUG at "),
	[]byte("Oops: "),
	[]byte("general protection fault"),
	[]byte("int3: 0000"),
	[]byte("invalid opcode: 0000"),
}

const longestSign = 32 // bytes, at least

const panicText = "Kernel panic - not syncing"

// bootStalls are texts that a starved but healthy guest prints too; the second
// one counts.
var bootStalls = [][]byte{
	[]byte("detected stalls on CPUs"),
	[]byte("self-detected stall on CPU"),
	[]byte("watchdog: BUG: soft lockup"),
}

// console takes in what a guest writes on its serial line: the newest bytes in
// memory, more in a bounded file, and a watch for the signs of a failed boot.
type console struct {
	path string

	mu      sync.Mutex
	tail    []byte
	line    []byte
	file    *os.File
	size    int64
	lastAt  time.Time
	trouble string // the first line that told of trouble
	stalls  int
	stalled bool // the current line was counted as a stall

	failed chan struct{} // closed with trouble
	output chan struct{} // one token per batch of new output, for waiters
}

// newConsole makes a console that logs to path; empty: memory only.
func newConsole(path string) *console {
	return &console{path: path, failed: make(chan struct{}), output: make(chan struct{}, 1), lastAt: time.Now()}
}

// readFrom takes in r until it ends.
func (c *console) readFrom(r io.Reader) {
	buf := make([]byte, 16<<10)
	for {
		n, err := r.Read(buf)
		c.take(buf[:n])
		if err != nil {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != nil {
		c.file.Close()
		c.file = nil
	}
}

func (c *console) take(p []byte) {
	if len(p) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastAt = time.Now()
	c.tail = append(c.tail, p...)
	if len(c.tail) > 2*consoleMemory {
		c.tail = append(c.tail[:0], c.tail[len(c.tail)-consoleMemory:]...)
	}
	c.log(p)
	c.match(p)
	select {
	case c.output <- struct{}{}:
	default:
	}
}

func (c *console) match(p []byte) {
	for len(p) > 0 && c.trouble == "" {
		part, rest, complete := bytes.Cut(p, []byte("\n"))
		seen := len(c.line)
		if room := consoleLine - seen; room > 0 {
			c.line = append(c.line, part[:min(room, len(part))]...)
		}
		// A line is looked at when it grows, not only when it ends: the last
		// line of a guest that hangs has no end.
		c.judge(max(0, seen-longestSign))
		if complete {
			c.line, c.stalled = c.line[:0], false
		}
		p = rest
	}
}

// judge looks for signs in the current line from an offset on: a guest that
// writes byte by byte must not cost the host a scan of the line each time.
func (c *console) judge(from int) {
	in := func(signs [][]byte) bool {
		return slices.ContainsFunc(signs, func(s []byte) bool { return bytes.Contains(c.line[from:], s) })
	}
	bad := in(bootTrouble)
	if !bad && !c.stalled && in(bootStalls) {
		c.stalled = true
		c.stalls++
		bad = c.stalls > 1
	}
	if bad {
		c.trouble = printable(bytes.TrimSpace(c.line), 200)
		close(c.failed)
	}
}

// log appends to the file. Its errors are not errors of the VM: a full disk
// costs the log, nothing else.
func (c *console) log(p []byte) {
	if c.path == "" {
		return
	}
	if c.file != nil && c.size > consoleLogMax {
		c.file.Close()
		c.file = nil
		os.Rename(c.path, c.path+".old")
	}
	if c.file == nil {
		f, err := os.OpenFile(c.path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return
		}
		c.file, c.size = f, 0
	}
	n, _ := c.file.Write(p)
	c.size += int64(n)
}

// newest returns a copy of the newest bytes, at most max.
func (c *console) newest(max int) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.tail[len(c.tail)-min(max, len(c.tail), consoleMemory):])
}

// sign returns the line that told of trouble, or "".
func (c *console) sign() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trouble
}

// lastOutput is when something came last, or when the console was made.
func (c *console) lastOutput() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastAt
}

// boundedLog is qemu.log: the beginning of what QEMU prints in a file, and the
// end of it in memory. A guest can make QEMU print.
type boundedLog struct {
	mu   sync.Mutex
	file *os.File
	left int64
	tail []byte
}

const (
	qemuLogMax  = 256 << 10
	qemuLogTail = 4 << 10
)

func newBoundedLog(path string) (*boundedLog, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	return &boundedLog{file: f, left: qemuLogMax}, nil
}

func (l *boundedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail = append(l.tail, p...)
	if over := len(l.tail) - qemuLogTail; over > 0 {
		l.tail = append(l.tail[:0], l.tail[over:]...)
	}
	if l.left > 0 && l.file != nil {
		n, _ := l.file.Write(p[:min(int64(len(p)), l.left)])
		l.left -= int64(n)
		if l.left <= 0 {
			io.WriteString(l.file, "\n[more output was dropped]\n")
		}
	}
	return len(p), nil
}

func (l *boundedLog) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return lastLines(l.tail, qemuLogTail)
}

func (l *boundedLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.file
	l.file = nil
	if f == nil {
		return nil
	}
	return f.Close()
}
