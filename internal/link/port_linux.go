package link

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Port is the guest's end of a virtio-serial port.
//
// The kernel shows a host that is not connected as end of file and as a
// permanent hang-up, so neither a blocking read nor a level-triggered poll can
// wait for it. Go's poller is edge-triggered: waiting for the next edge without
// having consumed anything sleeps until the host comes.
type Port struct {
	f  *os.File
	rc syscall.RawConn

	mu     sync.Mutex
	absent bool // the host's absence was reported
}

// OpenPort opens a port by its path under /dev/virtio-ports. Only one process
// can hold a port.
func OpenPort(path string) (*Port, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	rc, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s cannot be polled: %w", path, err)
	}
	return &Port{f: f, rc: rc, absent: true}, nil
}

// Read reads what the host sent. When the host leaves it returns ErrHostGone
// once; the next Read waits for the host to come back.
func (p *Port) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var n int
	var err error
	werr := p.rc.Read(func(fd uintptr) bool {
		for {
			n, err = unix.Read(int(fd), b)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case errors.Is(err, unix.EAGAIN):
				// Connected, nothing to read.
				p.absent = false
				return false
			case err == nil && n == 0 && p.absent:
				return false
			case err == nil && n == 0:
				p.absent, err = true, ErrHostGone
				return true
			default:
				p.absent = false
				return true
			}
		}
	})
	if werr != nil {
		return 0, werr
	}
	if err != nil {
		return 0, err
	}
	return n, nil
}

// Write waits while the host is absent or its queue is full.
func (p *Port) Write(b []byte) (int, error) { return p.f.Write(b) }

// Close wakes a waiting Read and Write.
func (p *Port) Close() error { return p.f.Close() }
