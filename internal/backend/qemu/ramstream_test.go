package qemu

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// streamOf builds a migration stream piece by piece.
type streamOf struct{ bytes.Buffer }

func (s *streamOf) put(v ...any) *streamOf {
	for _, x := range v {
		switch x := x.(type) {
		case string:
			s.WriteByte(byte(len(x)))
			s.WriteString(x)
		case []byte:
			s.Write(x)
		default:
			binary.Write(s, binary.BigEndian, x) //nolint:errcheck // into memory
		}
	}
	return s
}

func (s *streamOf) header() *streamOf {
	return s.put(uint32(streamMagic), uint32(streamVersion))
}

// begin is the first section: the list of blocks.
func (s *streamOf) begin(size uint64) *streamOf {
	return s.put(byte(sectionStart), uint32(2), "ram", uint32(0), uint32(4),
		(size+2*ramPageSize)|ramSizes, "ram", size, "rom", uint64(2*ramPageSize),
		uint64(ramEnd), byte(sectionFooter), uint32(2))
}

func (s *streamOf) section(kind byte, content ...any) *streamOf {
	return s.put(kind, uint32(2)).put(content...).put(uint64(ramEnd), byte(sectionFooter), uint32(2))
}

func page(c byte) []byte { return bytes.Repeat([]byte{c}, ramPageSize) }

// ramImage is what a stream is read into.
type ramImage []byte

func (m ramImage) WriteAt(b []byte, off int64) (int, error) { return copy(m[off:], b), nil }

func goodStream() []byte {
	var s streamOf
	s.header().begin(4*ramPageSize).
		put(byte(sectionCommand), uint16(1), uint16(3), []byte("xyz")).
		section(sectionPart,
			uint64(0|ramPage), "ram", page('a'), uint64(ramPageSize|ramPage|ramSame), page('b'),
			uint64(ramPageSize|ramPage), "rom", page('R'), uint64(0|ramZero|ramSame), byte(0),
			uint64(2*ramPageSize|ramZero), "ram", byte(0)).
		// The block of the section before goes on; what was written becomes zero.
		section(sectionPart, uint64(3*ramPageSize|ramPage|ramSame), page('d'), uint64(ramPageSize|ramZero|ramSame), byte(0)).
		section(sectionEnd, uint64(0|ramPage|ramSame), page('A')).
		put([]byte("devices"))
	return s.Bytes()
}

func TestReadRAM(t *testing.T) {
	got := make(ramImage, 4*ramPageSize)
	if err := readRAM(bytes.NewReader(goodStream()), got, int64(len(got))); err != nil {
		t.Fatal(err)
	}
	want := bytes.Join([][]byte{page('A'), page(0), page(0), page('d')}, nil)
	if !bytes.Equal(got, want) {
		t.Error("the memory is another")
	}
}

// TestReadBrokenRAM: a stream that is not whole, or not as we know it, is an
// error and never a memory.
func TestReadBrokenRAM(t *testing.T) {
	const size = 2 * ramPageSize
	whole := []any{uint64(0 | ramPage), "ram", page('a'), uint64(ramPageSize | ramPage | ramSame), page('b')}
	for name, s := range map[string]*streamOf{
		"nothing":            {},
		"another magic":      new(streamOf).put(uint32(1), uint32(3)),
		"another version":    new(streamOf).put(uint32(streamMagic), uint32(2)),
		"no memory":          new(streamOf).header().put(byte(0)),
		"another section":    new(streamOf).header().put(byte(sectionStart), uint32(2), "dirty-bitmap", uint32(0), uint32(1)),
		"a page is missing":  new(streamOf).header().begin(size).section(sectionEnd, whole[:3]...),
		"a part is no end":   new(streamOf).header().begin(size).section(sectionPart, whole...),
		"another size":       new(streamOf).header().begin(size*2).section(sectionEnd, whole...),
		"an unknown block":   new(streamOf).header().begin(size).section(sectionEnd, uint64(ramPage), "vga", page('a')),
		"no block":           new(streamOf).header().begin(size).section(sectionEnd, uint64(ramPage|ramSame), page('a')),
		"beyond the memory":  new(streamOf).header().begin(size).section(sectionEnd, uint64(size|ramPage), "ram", page('a')),
		"before the memory":  new(streamOf).header().begin(size).section(sectionEnd, ^uint64(ramFlagBits)|ramPage, "ram", page('a')),
		"a compressed page":  new(streamOf).header().begin(size).section(sectionEnd, uint64(0x100), "ram"),
		"two lists":          new(streamOf).header().begin(size).section(sectionEnd, uint64(ramPageSize|ramSizes), "ram", uint64(ramPageSize)),
		"no end of section":  new(streamOf).header().begin(size).put(byte(sectionEnd), uint32(2)).put(whole...).put(uint64(ramEnd), byte(0), uint32(2)),
		"of another section": new(streamOf).header().begin(size).put(byte(sectionEnd), uint32(3)).put(whole...),
		"a huge list":        new(streamOf).header().put(byte(sectionStart), uint32(2), "ram", uint32(0), uint32(4), uint64(1<<62|ramSizes), "x", uint64(1<<61)),
	} {
		if err := readRAM(bytes.NewReader(s.Bytes()), make(ramImage, size), size); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
	good := goodStream()
	end := len(good) - len("devices")
	for cut := 0; cut < end; cut += 101 {
		err := readRAM(bytes.NewReader(good[:cut]), make(ramImage, 4*ramPageSize), 4*ramPageSize)
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut after %d of %d bytes: %v", cut, end, err)
		}
	}
	full := errors.New("no room")
	err := readRAM(bytes.NewReader(good), writerAt(func() error { return full }), 4*ramPageSize)
	if !errors.Is(err, full) {
		t.Errorf("a full disk: %v", err)
	}
}

type writerAt func() error

func (w writerAt) WriteAt([]byte, int64) (int, error) { return 0, w() }

func FuzzReadRAM(f *testing.F) {
	f.Add(goodStream())
	f.Add([]byte(strings.Repeat("QEVM", 5)))
	f.Fuzz(func(t *testing.T, b []byte) {
		const size = 4 * ramPageSize
		// Whatever it reads, it ends, and writes nowhere else.
		_ = readRAM(bytes.NewReader(b), bounded{t, size}, size)
	})
}

type bounded struct {
	t    *testing.T
	size int64
}

func (w bounded) WriteAt(b []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(b)) > w.size {
		w.t.Fatalf("%d bytes at %d", len(b), off)
	}
	return len(b), nil
}

// TestReadRAMOfManyPasses: pages that are sent again and again, as data or as
// zeros and in any order, end as what was sent last.
func TestReadRAMOfManyPasses(t *testing.T) {
	const pages = 700 // more than one write
	rnd := rand.New(rand.NewPCG(3, 4))
	want := make(ramImage, pages*ramPageSize)
	var s streamOf
	s.header().begin(pages * ramPageSize)
	for pass := range 20 {
		first := true
		var content []any
		for i := range pages {
			if pass > 0 && rnd.IntN(3) > 0 {
				continue
			}
			at, flags := uint64(i*ramPageSize), uint64(ramSame)
			var name any = []byte{}
			if first || rnd.IntN(50) == 0 {
				flags, name = 0, "ram"
			}
			first = false
			var c byte
			if rnd.IntN(2) == 0 {
				c = byte(1 + rnd.IntN(255))
			}
			copy(want[at:], page(c))
			if c == 0 {
				content = append(content, at|ramZero|flags, name, byte(0))
			} else {
				content = append(content, at|ramPage|flags, name, page(c))
			}
		}
		kind := byte(sectionPart)
		if pass == 19 {
			kind = sectionEnd
		}
		s.section(kind, content...)
	}
	got := make(ramImage, len(want))
	if err := readRAM(bytes.NewReader(s.Bytes()), got, int64(len(got))); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the memory is another")
	}
}
