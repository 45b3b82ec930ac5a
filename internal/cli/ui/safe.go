package ui

import (
	"io"
	"strings"
)

// SafeWriter lets text and colours through to a terminal and nothing else that
// a terminal would act on: no cursor movement, titles, clipboard access or
// answers to queries. It works on bytes, so escape sequences that are split
// over writes are still found. Not for concurrent use.
type SafeWriter struct {
	w     io.Writer
	plain bool // colours are left out too
	state safeState
	held  []byte // an escape sequence so far
}

type safeState int

const (
	inText safeState = iota
	afterEscape
	inCSI
	inString // OSC, DCS, APC, PM, SOS: up to BEL or ESC \
	inStringEscape
)

// maxHeld bounds a colour sequence; longer ones are dropped.
const maxHeld = 64

// NewSafeWriter returns a SafeWriter on w.
func NewSafeWriter(w io.Writer) *SafeWriter { return &SafeWriter{w: w} }

// Write implements io.Writer; it reports all of p as written unless the
// underlying writer fails.
func (s *SafeWriter) Write(p []byte) (int, error) {
	out := make([]byte, 0, len(p))
	for _, b := range p {
		out = s.step(out, b)
	}
	if len(out) > 0 {
		if _, err := s.w.Write(out); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (s *SafeWriter) step(out []byte, b byte) []byte {
	switch s.state {
	case inText:
		switch {
		case b == 0x1b:
			s.state, s.held = afterEscape, append(s.held[:0], b)
		case b == '\n' || b == '\t' || b == '\r' || b >= 0x20 && b != 0x7f:
			// 0x80 to 0x9f on their own are controls only in 8-bit mode,
			// which terminals in UTF-8 mode do not have.
			return append(out, b)
		}
	case afterEscape:
		switch {
		case b == '[':
			s.state, s.held = inCSI, append(s.held, b)
		case b == ']' || b == 'P' || b == '_' || b == '^' || b == 'X':
			s.state = inString
		case b == 0x1b:
		case b >= 0x20 && b <= 0x2f: // intermediate: one more byte follows
		default:
			s.state = inText
		}
	case inCSI:
		switch {
		case b == 0x1b:
			s.state, s.held = afterEscape, append(s.held[:0], b)
		case b >= 0x40 && b <= 0x7e:
			s.state = inText
			if b == 'm' && len(s.held) < maxHeld && !s.plain {
				return append(append(out, s.held...), b)
			}
		case (b >= '0' && b <= '9' || b == ';' || b == ':') && len(s.held) < maxHeld:
			s.held = append(s.held, b)
		default: // a private or over-long sequence: never shown
			if len(s.held) < maxHeld {
				s.held = append(s.held, make([]byte, maxHeld-len(s.held))...)
			}
		}
	case inString:
		switch b {
		case 0x07:
			s.state = inText
		case 0x1b:
			s.state = inStringEscape
		}
	case inStringEscape:
		switch b {
		case '\\':
			s.state = inText
		case 0x1b:
		default:
			s.state = inString
		}
	}
	return out
}

// withoutEscapes is text without the escape sequences in it.
func withoutEscapes(text string) string {
	if strings.IndexByte(text, 0x1b) < 0 {
		return text
	}
	var out []byte
	s := SafeWriter{plain: true}
	for i := range len(text) {
		// Other control characters are the caller's to judge.
		if b := text[i]; s.state == inText && b != 0x1b {
			out = append(out, b)
		} else {
			out = s.step(out, b)
		}
	}
	return string(out)
}
