package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
)

// version is the framing version that HELLO and its echo carry.
const version = 1

const (
	headerSize = 32
	maxPayload = 64 << 10
)

// magic starts every frame. Its bytes are all different and none is zero: so
// no occurrence can overlap another one's start, and none can begin in a header
// (which ends in zeros) and end in a payload.
var magic = []byte{0xf5, 'S', 'B', 'X', 'l', 'n', 'k', 0xa7}

// castagnoli is made on first use: it takes milliseconds, and every shim of the
// agent's executable would pay for it.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

type frameType byte

const (
	typeHello   frameType = 1 // host → guest: open session
	typeWelcome frameType = 2 // guest → host: the echo
	typeData    frameType = 3
	typeClose   frameType = 4 // the sender is done with the session; payload: why
	typeReset   frameType = 5 // guest → host: the guest's end started anew, no session lives
)

// Layout of a header, little endian:
//
//	0  magic   8
//	8  type    1
//	9  length  4  of the payload
//	13 session 8
//	21 seq     4  counts the data frames of one direction, wraps
//	25 crc     4  CRC-32C of bytes 8 to 25 and the payload
//	29 zero    3
type frame struct {
	typ     frameType
	session uint64
	seq     uint32
	payload []byte
}

// appendFrame appends the encoded frame. The payload must be at most
// maxPayload and must not contain the magic; see splitPayload.
func appendFrame(dst []byte, f frame) []byte {
	base := len(dst)
	dst = append(dst, magic...)
	dst = append(dst, byte(f.typ))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(f.payload)))
	dst = binary.LittleEndian.AppendUint64(dst, f.session)
	dst = binary.LittleEndian.AppendUint32(dst, f.seq)
	crc := crc32.Update(0, castagnoli(), dst[base+8:base+25])
	crc = crc32.Update(crc, castagnoli(), f.payload)
	dst = binary.LittleEndian.AppendUint32(dst, crc)
	dst = append(dst, 0, 0, 0)
	return append(dst, f.payload...)
}

// splitPayload returns how many bytes of p fit in one frame.
func splitPayload(p []byte) int {
	n := min(len(p), maxPayload)
	if i := bytes.Index(p[:n], magic); i >= 0 {
		return i + len(magic)/2
	}
	return n
}

// errGarbage is what decoder.next returns once for each run of bytes that was
// not a frame. The decoder has resynchronised and can be used on.
var errGarbage = errors.New("link: bytes that are not a frame")

// decoder reads frames from a stream and resynchronises by itself.
type decoder struct {
	r       io.Reader
	buf     []byte
	pos     int // first unread byte of buf
	scanned int // buf[pos+1:scanned] holds no magic
	err     error
}

func newDecoder(r io.Reader) *decoder {
	return &decoder{r: r, buf: make([]byte, 0, 4*(headerSize+maxPayload))}
}

// next returns the next valid frame. Its payload is valid until the next call.
// After errGarbage the caller goes on; every other error is the reader's own
// and final unless the reader recovers.
func (d *decoder) next() (frame, error) {
	for {
		have := d.buf[d.pos:]
		// The frame, if it is one, starts at have[0].
		if len(have) > 0 && !bytes.HasPrefix(have, magic[:min(len(have), len(magic))]) {
			d.hunt(0)
			return frame{}, errGarbage
		}
		if len(have) >= headerSize {
			size := headerSize + int(binary.LittleEndian.Uint32(have[9:]))
			if size > headerSize+maxPayload || have[29]|have[30]|have[31] != 0 {
				d.hunt(1)
				return frame{}, errGarbage
			}
			if len(have) >= size {
				f, ok := parse(have[:size])
				if !ok {
					d.hunt(1)
					return frame{}, errGarbage
				}
				d.pos += size
				d.scanned = d.pos
				return f, nil
			}
		}
		// Incomplete. If another frame starts inside, this one was cut off.
		if len(have) > len(magic) {
			from := max(d.scanned-d.pos-len(magic)+1, 1)
			if bytes.Contains(have[from:], magic) {
				d.hunt(1)
				return frame{}, errGarbage
			}
			d.scanned = len(d.buf)
		}
		if err := d.fill(); err != nil {
			return frame{}, err
		}
	}
}

// hunt drops bytes until the buffer starts with a magic, or with what may
// become one, at or after the given offset.
func (d *decoder) hunt(from int) {
	have := d.buf[d.pos+from:]
	skip := bytes.Index(have, magic)
	if skip < 0 {
		skip = len(have)
		for k := min(len(magic)-1, len(have)); k > 0; k-- {
			if bytes.HasSuffix(have, magic[:k]) {
				skip = len(have) - k
				break
			}
		}
	}
	d.pos += from + skip
	d.scanned = d.pos
}

// fill reads more bytes.
func (d *decoder) fill() error {
	if d.err != nil {
		err := d.err
		d.err = nil
		return err
	}
	if d.pos == len(d.buf) {
		d.buf, d.pos, d.scanned = d.buf[:0], 0, 0
	} else if cap(d.buf)-d.pos < headerSize+maxPayload || cap(d.buf) == len(d.buf) {
		n := copy(d.buf[:cap(d.buf)], d.buf[d.pos:])
		d.scanned -= d.pos
		d.buf, d.pos = d.buf[:n], 0
	}
	n, err := d.r.Read(d.buf[len(d.buf):cap(d.buf)])
	if n < 0 || n > cap(d.buf)-len(d.buf) {
		return fmt.Errorf("link: reader returned %d bytes", n)
	}
	d.buf = d.buf[:len(d.buf)+n]
	if n > 0 {
		d.err = err
		return nil
	}
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}

// parse checks a whole frame.
func parse(b []byte) (frame, bool) {
	crc := crc32.Update(0, castagnoli(), b[8:25])
	crc = crc32.Update(crc, castagnoli(), b[headerSize:])
	if crc != binary.LittleEndian.Uint32(b[25:]) {
		return frame{}, false
	}
	return frame{
		typ:     frameType(b[8]),
		session: binary.LittleEndian.Uint64(b[13:]),
		seq:     binary.LittleEndian.Uint32(b[21:]),
		payload: b[headerSize:],
	}, true
}
