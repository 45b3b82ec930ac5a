package shim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// State is the shared memory between a shim and the agent: one page in the file
// "state". Only the shim writes the counters.
type State struct {
	magic   uint32
	PID     atomic.Uint32
	Waiting atomic.Uint32 // set by the agent before it sleeps; the shim wakes it and clears it
	_       uint32
	Streams [2]Counters
}

// Counters describe one stream. The kept bytes are those before HeadEnd and
// those from TailStart to Total.
type Counters struct {
	Total     atomic.Uint64 // bytes the process wrote
	HeadEnd   atomic.Uint64
	TailStart atomic.Uint64
}

// Dropped is how many bytes of the stream are no longer kept.
func (c *Counters) Dropped() uint64 {
	head, tail := c.HeadEnd.Load(), c.TailStart.Load()
	if tail <= head {
		return 0
	}
	return tail - head
}

const (
	stateMagic = 0x73667331
	stateSize  = 4096

	// DefaultSpool bounds a stream's spool unless the job says otherwise.
	DefaultSpool = 16 << 20
	minSpool     = 128 << 10
	maxHead      = 1 << 20
	block        = 4096
)

// MapState maps a state file; create makes a new one.
func MapState(path string, create bool) (*State, error) {
	flags := unix.O_RDWR | unix.O_CLOEXEC | unix.O_NOFOLLOW
	if create {
		flags |= unix.O_CREAT | unix.O_EXCL
	}
	fd, err := unix.Open(path, flags, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if create {
		if err := unix.Ftruncate(fd, stateSize); err != nil {
			return nil, &os.PathError{Op: "truncate", Path: path, Err: err}
		}
	} else {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Size < stateSize {
			return nil, fmt.Errorf("%s: not a state file", path)
		}
	}
	mem, err := unix.Mmap(fd, 0, stateSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, &os.PathError{Op: "mmap", Path: path, Err: err}
	}
	s := (*State)(unsafe.Pointer(unsafe.SliceData(mem)))
	if create {
		s.magic = stateMagic
	} else if s.magic != stateMagic {
		unix.Munmap(mem) //nolint:errcheck // was mapped
		return nil, fmt.Errorf("%s: not a state file", path)
	}
	return s, nil
}

// Unmap releases the mapping; s is not valid afterwards.
func (s *State) Unmap() {
	unix.Munmap(unsafe.Slice((*byte)(unsafe.Pointer(s)), stateSize)) //nolint:errcheck // was mapped
}

// spool writes one stream. Its file keeps absolute offsets; what exceeds the
// bound is cut from the middle as a hole.
type spool struct {
	fd    int
	c     *Counters
	limit uint64 // of the tail
	step  uint64 // how much is cut at once
	lost  bool   // the file can't be written any more
}

func newSpool(fd int, c *Counters, limit uint64) *spool {
	if limit == 0 {
		limit = DefaultSpool
	}
	limit = max(limit, minSpool)
	head := min(limit/4, maxHead) / block * block
	tail := limit - head
	c.HeadEnd.Store(head)
	return &spool{fd: fd, c: c, limit: tail, step: min(tail/4, 1<<20) / block * block}
}

// append adds p to the stream. It never fails: what can't be kept is counted as
// dropped.
func (s *spool) append(p []byte) {
	off := s.c.Total.Load()
	end := off + uint64(len(p))
	if !s.lost {
		for done := 0; done < len(p); {
			n, err := unix.Pwrite(s.fd, p[done:], int64(off)+int64(done))
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				// A full disk. The head, if it was still growing, ends here.
				s.lost = true
				break
			}
			done += n
		}
	}
	if s.lost {
		if s.c.HeadEnd.Load() > off {
			s.c.HeadEnd.Store(off)
		}
		s.c.TailStart.Store(end)
		s.c.Total.Store(end)
		// Space may come back: the next bytes are tried again.
		s.lost = false
		return
	}
	s.c.Total.Store(end)
	s.cut(end)
}

func (s *spool) cut(end uint64) {
	from := max(s.c.HeadEnd.Load(), s.c.TailStart.Load())
	if end <= from || end-from <= s.limit {
		return
	}
	to := (end - s.limit + s.step) / block * block
	s.c.TailStart.Store(to)
	lo := (from + block - 1) / block * block
	if lo < to {
		// Where holes are not supported the file grows; the guest's images are
		// on ext4 and tmpfs, which have them.
		unix.Fallocate(s.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(lo), int64(to-lo)) //nolint:errcheck // see above
	}
}

// discard frees everything; what comes later is dropped too.
func (s *spool) discard() {
	s.c.HeadEnd.Store(0)
	s.c.TailStart.Store(s.c.Total.Load())
	unix.Ftruncate(s.fd, 0) //nolint:errcheck // the file is about to be removed
}

// Spool reads one stream while its shim writes it.
type Spool struct {
	F io.ReaderAt
	C *Counters
}

// ReadAt fills p from the first kept byte at or after off and says where that
// is. It returns 0 bytes if the stream has no more at present.
func (s Spool) ReadAt(p []byte, off uint64) (at uint64, n int, err error) {
	for {
		total := s.C.Total.Load()
		head, tail := s.C.HeadEnd.Load(), s.C.TailStart.Load()
		at = off
		if at >= head && at < tail {
			at = tail
		}
		if at >= total {
			return at, 0, nil
		}
		limit := total
		if at < head && tail > head {
			limit = min(head, total)
		}
		n = int(min(uint64(len(p)), limit-at))
		got, err := s.F.ReadAt(p[:n], int64(at))
		if err != nil && !errors.Is(err, io.EOF) {
			return at, 0, err
		}
		// The counters moved before the bytes did: what they still cover
		// was not cut while it was read.
		head2, tail2 := s.C.HeadEnd.Load(), s.C.TailStart.Load()
		if at >= head2 && at < tail2 {
			continue
		}
		if got < n {
			// Somebody in the guest shortened the file.
			clear(p[got:n])
		}
		return at, n, nil
	}
}
