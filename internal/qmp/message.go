package qmp

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// MaxMessage bounds one message from QEMU, in bytes. Long answers exist
// (query-qmp-schema is some 200 KiB); this is far above them.
const MaxMessage = 16 << 20

// Event is something QEMU says unasked.
type Event struct {
	Name string
	Data json.RawMessage // may be nil
	At   time.Time       // QEMU's clock
}

// Error is QEMU's refusal of a command.
type Error struct {
	Command string
	Class   string
	Desc    string
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("qemu refused %s: %s (%s)", e.Command, e.Desc, e.Class)
}

// message is any of the four kinds that QEMU sends.
type message struct {
	QMP    json.RawMessage `json:"QMP"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	ID        *uint64         `json:"id"`
	Event     string          `json:"event"`
	Data      json.RawMessage `json:"data"`
	Timestamp struct {
		Seconds      int64 `json:"seconds"`
		Microseconds int64 `json:"microseconds"`
	} `json:"timestamp"`
}

func (m *message) event() Event {
	return Event{Name: m.Event, Data: m.Data, At: time.Unix(m.Timestamp.Seconds, m.Timestamp.Microseconds*1000)}
}

var errTooLong = errors.New("qmp: message too long")

// decoder reads messages and fails on one above MaxMessage without buffering
// it whole.
type decoder struct {
	json *json.Decoder
	r    *budgetReader
}

func newDecoder(r io.Reader) *decoder {
	b := &budgetReader{r: bufio.NewReaderSize(r, 64<<10)}
	return &decoder{json: json.NewDecoder(b), r: b}
}

// next returns the next message.
func (d *decoder) next() (*message, error) {
	// What the JSON decoder has buffered already counts for the message
	// before, so a message may be read with up to one buffer of slack.
	d.r.left = MaxMessage
	var m message
	if err := d.json.Decode(&m); err != nil {
		var syntax *json.SyntaxError
		var kind *json.UnmarshalTypeError
		if errors.As(err, &syntax) || errors.As(err, &kind) {
			err = fmt.Errorf("qmp: malformed message: %w", err)
		}
		return nil, err
	}
	return &m, nil
}

type budgetReader struct {
	r    io.Reader
	left int
}

func (b *budgetReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	if len(p) > b.left {
		p = p[:b.left]
	}
	n, err := b.r.Read(p)
	b.left -= n
	return n, err
}
