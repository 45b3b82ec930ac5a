package ui

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// Progress shows what a long operation does: on a terminal one line that is
// redrawn with the time elapsed, elsewhere a plain line per stage and, within a
// stage, at most one per PlainEvery.
//
// Its methods may be called from several goroutines and do not block on
// anything but the writer. The zero value and nil are not usable; after Close
// calls do nothing.
type Progress struct {
	w   io.Writer
	o   ProgressOptions
	mu  sync.Mutex
	tty bool

	started     time.Time
	stageSince  time.Time
	stage, text string
	drawn       bool
	lastPlain   time.Time
	lastLine    string
	frame       int
	closed      bool
	quit, done  chan struct{}
}

// ProgressOptions may all be left zero.
type ProgressOptions struct {
	// Terminal forces the kind of output; nil: whether the writer is one.
	Terminal *bool
	// Width is the terminal's width; nil: asked of the writer each time.
	Width func() int
	// Now is the clock; nil: time.Now.
	Now func() time.Time
	// PlainEvery is the least time between two plain lines of one stage; zero:
	// 10 s.
	PlainEvery time.Duration
	// Prefix is drawn before every line.
	Prefix string
	// Manual leaves redrawing to calls of Tick, for tests.
	Manual bool
}

// redraw is often enough for the seconds to run smoothly.
const redraw = 200 * time.Millisecond

// IsTerminal reports whether w is a terminal.
func IsTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// NewProgress starts showing progress on w. Close must be called.
func NewProgress(w io.Writer, o ProgressOptions) *Progress {
	p := &Progress{w: w, o: o, tty: IsTerminal(w), quit: make(chan struct{}), done: make(chan struct{})}
	if o.Terminal != nil {
		p.tty = *o.Terminal
	}
	if p.o.Now == nil {
		p.o.Now = time.Now
	}
	if p.o.PlainEvery == 0 {
		p.o.PlainEvery = 10 * time.Second
	}
	if p.o.Width == nil {
		p.o.Width = func() int { return widthOf(w) }
	}
	p.started = p.o.Now()
	p.stageSince = p.started
	if !p.tty || o.Manual {
		close(p.done)
		return p
	}
	go p.run()
	return p
}

func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if cols, _, err := term.GetSize(int(f.Fd())); err == nil && cols > 0 {
			return cols
		}
	}
	return 80
}

func (p *Progress) run() {
	defer close(p.done)
	t := time.NewTicker(redraw)
	defer t.Stop()
	for {
		select {
		case <-p.quit:
			return
		case <-t.C:
			p.Tick()
		}
	}
}

// Update says what happens now. An empty stage keeps the stage.
func (p *Progress) Update(stage, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	now := p.o.Now()
	changed := stage != "" && stage != p.stage
	if changed {
		p.stage, p.stageSince = stage, now
	}
	p.text = Clean(text)
	if p.tty {
		if changed || !p.drawn {
			p.draw()
		}
		return
	}
	line := p.line()
	if line == p.lastLine || (!changed && !p.lastPlain.IsZero() && now.Sub(p.lastPlain) < p.o.PlainEvery) {
		return
	}
	p.lastLine, p.lastPlain = line, now
	fmt.Fprintf(p.w, "%s%s (%s)\n", p.o.Prefix, line, Duration(now.Sub(p.started)))
}

func (p *Progress) line() string {
	switch {
	case p.stage == "":
		return p.text
	case p.text == "":
		return p.stage
	}
	return p.stage + ": " + p.text
}

var frames = []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}

// Tick redraws the line; the progress does it by itself unless Manual.
func (p *Progress) Tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.tty {
		return
	}
	p.draw()
}

func (p *Progress) draw() {
	p.frame++
	head := p.o.Prefix + frames[p.frame%len(frames)] + " "
	tail := " " + Duration(p.o.Now().Sub(p.started))
	room := p.o.Width() - len([]rune(head)) - len([]rune(tail)) - 1
	fmt.Fprintf(p.w, "\r\x1b[K%s%s%s", head, Cut(p.line(), max(room, 1)), tail)
	p.drawn = true
}

// Print writes whole lines above the progress line.
func (p *Progress) Print(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintln(p.w, text)
	if p.tty && !p.closed && p.line() != "" {
		p.draw()
	}
}

func (p *Progress) clear() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = false
	}
}

// Elapsed is the time since the progress began.
func (p *Progress) Elapsed() time.Duration { return p.o.Now().Sub(p.started) }

// Close removes the line and waits for the drawing to stop. Calling it twice
// is fine.
func (p *Progress) Close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	p.clear()
	close(p.quit)
	p.mu.Unlock()
	<-p.done
}
