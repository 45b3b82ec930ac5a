package qemu

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A guest's memory is a private mapping of a file that other VMs map too. What
// the guest wrote are pages of the process's own; all others are the file's.

// mapping is a stretch of a process's memory that maps a file.
type mapping struct {
	start, end uint64 // addresses
	offset     int64  // in the file
}

// mappingsOf finds where a process maps a file.
func mappingsOf(pid int, file *unix.Stat_t) ([]mapping, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMaps(f, file.Dev, file.Ino)
}

// parseMaps reads the form of /proc/PID/maps (proc(5)).
func parseMaps(r io.Reader, dev, inode uint64) (out []mapping, err error) {
	sc := bufio.NewScanner(r)
	want := fmt.Sprintf("%02x:%02x", unix.Major(dev), unix.Minor(dev))
	for sc.Scan() {
		fields := strings.Fields(sc.Text())
		if len(fields) < 5 || fields[3] != want {
			continue
		}
		if n, err := strconv.ParseUint(fields[4], 10, 64); err != nil || n != inode {
			continue
		}
		from, to, ok := strings.Cut(fields[0], "-")
		m := mapping{}
		var e1, e2, e3 error
		m.start, e1 = strconv.ParseUint(from, 16, 64)
		m.end, e2 = strconv.ParseUint(to, 16, 64)
		m.offset, e3 = strconv.ParseInt(fields[2], 16, 64)
		if err := errors.Join(e1, e2, e3); !ok || err != nil || m.end <= m.start {
			return nil, fmt.Errorf("a line of the process's maps is malformed: %.80q", sc.Text())
		}
		out = append(out, m)
	}
	return out, sc.Err()
}

// Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap).
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
	pageOfFile  = 1 << 61 // file page or shared anonymous
)

// ownPages finds the stretches of a mapping, as offsets in the file, whose
// pages are the process's own.
func ownPages(pagemap io.ReaderAt, m mapping, pageSize int64) (runs [][2]int64, err error) {
	count := int64(m.end-m.start) / pageSize
	buf := make([]byte, min(count, 64<<10)*8)
	open := int64(-1)
	for page := int64(0); page < count; {
		n := min(count-page, int64(len(buf)/8))
		if _, err := pagemap.ReadAt(buf[:n*8], (int64(m.start)/pageSize+page)*8); err != nil {
			return nil, fmt.Errorf("reading the page map: %w", err)
		}
		for i := range n {
			e := binary.NativeEndian.Uint64(buf[i*8:])
			own := e&pagePresent != 0 && e&pageOfFile == 0 || e&pageSwapped != 0
			at := m.offset + (page+i)*pageSize
			switch {
			case own && open < 0:
				open = at
			case !own && open >= 0:
				runs = append(runs, [2]int64{open, at})
				open = -1
			}
		}
		page += n
	}
	if open >= 0 {
		runs = append(runs, [2]int64{open, m.offset + count*pageSize})
	}
	return runs, nil
}

// memoryOf gives access to the memory of a guest that stands still.
type memoryOf struct {
	mem, pagemap *os.File
	maps         []mapping
}

var errBlind = errors.New("a test takes it for unreadable")

func (b *Backend) openMemory(pid int, path string) (*memoryOf, error) {
	if b.blind {
		return nil, errBlind
	}
	return openMemory(pid, path)
}

// openMemory opens the memory of a process that maps the file at path, and tries
// that it can be read.
func openMemory(pid int, path string) (*memoryOf, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	maps, err := mappingsOf(pid, &st)
	if err != nil {
		return nil, err
	}
	if len(maps) == 0 {
		return nil, fmt.Errorf("the process %d does not map %s", pid, path)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return nil, err
	}
	pagemap, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", pid))
	if err != nil {
		mem.Close()
		return nil, err
	}
	m := &memoryOf{mem, pagemap, maps}
	if err := m.try(); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// try reads a page and what the kernel says of it: where that is forbidden, not
// every kernel says so already when the files are opened.
func (m *memoryOf) try() error {
	page := make([]byte, os.Getpagesize())
	at := int64(m.maps[0].start)
	if _, err := m.pagemap.ReadAt(page[:8], at/int64(len(page))*8); err != nil {
		return err
	}
	_, err := m.mem.ReadAt(page, at)
	return err
}

func (m *memoryOf) Close() {
	m.mem.Close()
	m.pagemap.Close()
}

// copyOwn writes the process's own pages to where they belong in the image of
// the memory, and returns the stretches it wrote, in order.
func (m *memoryOf) copyOwn(to *os.File) (runs [][2]int64, err error) {
	buf := make([]byte, 4<<20)
	for _, mp := range m.maps {
		own, err := ownPages(m.pagemap, mp, int64(os.Getpagesize()))
		if err != nil {
			return nil, err
		}
		for _, r := range own {
			for off := r[0]; off < r[1]; {
				b := buf[:min(int64(len(buf)), r[1]-off)]
				if _, err := m.mem.ReadAt(b, int64(mp.start)+off-mp.offset); err != nil {
					return nil, fmt.Errorf("reading the guest's memory: %w", err)
				}
				if _, err := to.WriteAt(b, off); err != nil {
					return nil, err
				}
				off += int64(len(b))
			}
		}
		runs = append(runs, own...)
	}
	return runs, nil
}

// fillFrom copies the data of another memory's image to where runs, in order,
// leave it untouched.
func fillFrom(to, from *os.File, runs [][2]int64) error {
	next := 0
	return dataExtents(from, func(off, end int64) error {
		for off < end {
			for next < len(runs) && runs[next][1] <= off {
				next++
			}
			stop := end
			if next < len(runs) {
				if runs[next][0] <= off {
					off = min(runs[next][1], end)
					continue
				}
				stop = min(end, runs[next][0])
			}
			if err := copyRange(to, from, off, stop); err != nil {
				return err
			}
			off = stop
		}
		return nil
	})
}

// copyRange copies between files at the same offset, in the kernel where it
// can be done there.
func copyRange(to, from *os.File, off, end int64) error {
	for off < end {
		in, out := off, off
		n, err := unix.CopyFileRange(int(from.Fd()), &in, int(to.Fd()), &out, int(min(end-off, 1<<30)), 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP):
			_, err := io.Copy(io.NewOffsetWriter(to, off), io.NewSectionReader(from, off, end-off))
			return err
		case err != nil:
			return os.NewSyscallError("copy_file_range", err)
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		off += int64(n)
	}
	return nil
}
