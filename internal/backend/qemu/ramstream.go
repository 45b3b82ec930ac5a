package qemu

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// A reader of the part of QEMU's migration stream that is the guest's memory.
// Destinations of any later version have to understand that part, so it does
// not change under us; what is not known here is an error and never skipped.
// The format is that of migration/savevm.c and migration/ram.c of QEMU.

const (
	streamMagic   = 0x5145564d // "QEVM"
	streamVersion = 3
)

// Kinds of sections.
const (
	sectionStart   = 0x01
	sectionPart    = 0x02
	sectionEnd     = 0x03
	sectionCommand = 0x08
	sectionFooter  = 0x7e
)

// Flags in the low bits of a page's offset.
const (
	ramZero     = 0x02
	ramSizes    = 0x04
	ramPage     = 0x08
	ramEnd      = 0x10
	ramSame     = 0x20 // the block of the page before
	ramFlagBits = 0xfff
)

const (
	// ramPageSize is the unit of the stream: the smallest page of the guests
	// that we run.
	ramPageSize = 4096
	// maxRAMBlocks bounds how many pieces of memory a stream may name: the
	// guest's own, and some of firmware and tables.
	maxRAMBlocks = 1024
	// ramRun is how much is written at once where pages follow each other.
	ramRun = 1 << 20
)

// ramNames are what QEMU calls the memory that memory.object makes; newer ones
// use the path of the object.
var ramNames = []string{"ram", "/objects/ram"}

// readRAM reads a migration stream until all of the guest's memory, of size
// bytes, is in to, which has to read as zeros before. It fails for a stream that
// leaves a page out. What follows in the stream is left unread.
func readRAM(stream io.Reader, to io.WriterAt, size int64) error {
	r := &ramReader{
		in: bufio.NewReaderSize(stream, ramRun), size: size,
		pages: pages{to: to, buf: make([]byte, 0, ramRun), seen: make([]bool, size/ramPageSize), written: make([]bool, size/ramPageSize)},
	}
	err := r.sections()
	if err == nil {
		err = r.err
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = r.pages.flush()
	}
	if err != nil {
		return fmt.Errorf("the memory that QEMU sends: %w", err)
	}
	if i := slices.Index(r.pages.seen, false); i >= 0 {
		return fmt.Errorf("the memory that QEMU sends lacks the page at %d", int64(i)*ramPageSize)
	}
	return nil
}

type ramReader struct {
	in     *bufio.Reader
	err    error // the first; reading goes on with zeros, see u8
	size   int64
	blocks map[string]int64
	block  int64 // size of the current one, also from section to section; 0: none
	main   bool  // it is the guest's memory
	pages  pages
}

// u8, u32 and u64 are 0 once reading has failed, which no loop here goes on
// with.
func (r *ramReader) u8() byte {
	var b [1]byte
	r.full(b[:])
	return b[0]
}

func (r *ramReader) u16() uint16 {
	var b [2]byte
	r.full(b[:])
	return binary.BigEndian.Uint16(b[:])
}

func (r *ramReader) u32() uint32 {
	var b [4]byte
	r.full(b[:])
	return binary.BigEndian.Uint32(b[:])
}

func (r *ramReader) u64() uint64 {
	var b [8]byte
	r.full(b[:])
	return binary.BigEndian.Uint64(b[:])
}

func (r *ramReader) full(b []byte) {
	if r.err == nil {
		_, r.err = io.ReadFull(r.in, b)
	}
	if r.err != nil {
		clear(b)
	}
}

func (r *ramReader) name() string {
	b := make([]byte, r.u8())
	r.full(b)
	return string(b)
}

// sections reads up to the end of the memory.
func (r *ramReader) sections() error {
	if magic, version := r.u32(), r.u32(); magic != streamMagic || version != streamVersion {
		return errors.Join(r.err, fmt.Errorf("no migration stream: %#x, version %d", magic, version))
	}
	var id uint32
	for begun := false; r.err == nil; {
		kind := r.u8()
		if kind == sectionCommand { // to the destination's state machine
			r.u16()
			if _, err := r.in.Discard(int(r.u16())); err != nil {
				return err
			}
			continue
		}
		number := r.u32()
		switch {
		case r.err != nil:
			return r.err
		case kind == sectionStart && !begun:
			name := r.name()
			r.u32() // instance
			r.u32() // version, which is 4 since long before what we run on
			if name != "ram" {
				return errors.Join(r.err, fmt.Errorf("an unknown section %.40q", name))
			}
			id, begun = number, true
		case (kind == sectionPart || kind == sectionEnd) && begun && number == id:
		default:
			return fmt.Errorf("an unknown section of kind %#x", kind)
		}
		if err := r.content(); err != nil {
			return err
		}
		if footer, of := r.u8(), r.u32(); footer != sectionFooter || of != id {
			return errors.Join(r.err, errors.New("a section does not end where it should"))
		}
		if kind == sectionEnd {
			return nil
		}
	}
	return r.err
}

// content reads what one section has of the memory.
func (r *ramReader) content() error {
	for {
		v := r.u64()
		if r.err != nil {
			return r.err
		}
		offset, flags := int64(v&^ramFlagBits), v&ramFlagBits
		switch kind := flags &^ ramSame; kind {
		case ramEnd:
			return nil
		case ramSizes:
			if err := r.sizes(offset); err != nil {
				return err
			}
		case ramZero, ramPage:
			if flags&ramSame == 0 {
				name := r.name()
				if r.block = r.blocks[name]; r.block == 0 {
					return errors.Join(r.err, fmt.Errorf("an unknown block %.80q", name))
				}
				r.main = slices.Contains(ramNames, name)
			}
			if offset < 0 || offset > r.block-ramPageSize {
				return fmt.Errorf("a page at %d of a block of %d bytes", offset, r.block)
			}
			var fill byte
			if kind == ramZero {
				fill = r.u8()
			}
			if !r.main {
				if kind == ramPage {
					if _, err := r.in.Discard(ramPageSize); err != nil {
						return err
					}
				}
				continue
			}
			if kind == ramZero && fill == 0 && !r.pages.written[offset/ramPageSize] {
				r.pages.seen[offset/ramPageSize] = true
				continue
			}
			page, err := r.pages.next(offset)
			if err != nil {
				return err
			}
			if kind == ramPage {
				r.full(page)
				continue
			}
			for i := range page {
				page[i] = fill
			}
		default:
			return fmt.Errorf("a page with the flags %#x", flags)
		}
	}
}

// sizes reads the list of blocks, which have total bytes.
func (r *ramReader) sizes(total int64) error {
	if r.blocks != nil {
		return errors.New("a second list of blocks")
	}
	r.blocks = map[string]int64{}
	main := 0
	for total > 0 {
		name, size := r.name(), int64(r.u64())
		if r.err != nil {
			return r.err
		}
		if size <= 0 || size > total || size%ramPageSize != 0 || len(r.blocks) == maxRAMBlocks {
			return fmt.Errorf("a block %.80q of %d bytes", name, size)
		}
		if slices.Contains(ramNames, name) {
			main++
			if size != r.size {
				return fmt.Errorf("the guest's memory has %d bytes, not %d", size, r.size)
			}
		}
		r.blocks[name] = size
		total -= size
	}
	if total != 0 || main != 1 {
		return errors.New("a list of blocks that is not of our guest")
	}
	return nil
}

// pages collects pages that follow each other into one write.
type pages struct {
	to            io.WriterAt
	at            int64 // where buf belongs
	buf           []byte
	seen, written []bool // by page
}

// next is room for the page at an offset, which counts as written.
func (p *pages) next(offset int64) ([]byte, error) {
	if len(p.buf) == cap(p.buf) || offset != p.at+int64(len(p.buf)) {
		if err := p.flush(); err != nil {
			return nil, err
		}
		p.at = offset
	}
	n := len(p.buf)
	p.buf = p.buf[:n+ramPageSize]
	p.seen[offset/ramPageSize], p.written[offset/ramPageSize] = true, true
	return p.buf[n:], nil
}

func (p *pages) flush() error {
	if len(p.buf) == 0 {
		return nil
	}
	_, err := p.to.WriteAt(p.buf, p.at)
	p.buf = p.buf[:0]
	return err
}
