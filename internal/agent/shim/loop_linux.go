package shim

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// serve is the shim's life: one thread, one poll.
func (s *shim) serve() {
	buf := make([]byte, 64<<10)
	for !s.done() {
		fds := []unix.PollFd{
			{Fd: int32(s.child), Events: unix.POLLIN},
			{Fd: int32(s.listen), Events: unix.POLLIN},
			{Fd: int32(s.out[0].fd), Events: unix.POLLIN},
			{Fd: int32(s.out[1].fd), Events: unix.POLLIN},
			{Fd: -1, Events: unix.POLLOUT},
			{Fd: int32(s.pidfd), Events: unix.POLLIN},
		}
		const fixed = 6
		if s.stdin.fd >= 0 && len(s.stdin.queue) > 0 {
			fds[4].Fd = int32(s.stdin.fd)
		}
		conns := s.conns
		for _, c := range conns {
			p := unix.PollFd{Fd: int32(c.fd)}
			if len(s.stdin.queue) < maxQueue || len(c.in) == 0 || c.in[0] != MsgStdin {
				p.Events |= unix.POLLIN
			}
			if len(c.out) > 0 {
				p.Events |= unix.POLLOUT
			}
			fds = append(fds, p)
		}
		timeout := -1
		if !s.deadline.IsZero() && !s.ended && !s.timedOut {
			timeout = int(min(max(time.Until(s.deadline)+time.Millisecond-1, 0), time.Hour) / time.Millisecond)
		}
		if _, err := unix.Poll(fds, timeout); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		if !s.deadline.IsZero() && !s.ended && !s.timedOut && !time.Now().Before(s.deadline) {
			s.timedOut = true
			s.signal(unix.SIGKILL, true, false)
		}
		if fds[4].Revents != 0 {
			s.feed()
		}
		for i := range s.out {
			if fds[2+i].Revents != 0 {
				s.copy(i, buf, 16*len(buf))
			}
		}
		if fds[1].Revents != 0 {
			s.accept()
		}
		for i, c := range conns {
			if r := fds[fixed+i].Revents; r != 0 {
				s.talk(c, r, buf)
			}
		}
		if fds[0].Revents != 0 || fds[5].Revents != 0 {
			s.reap(buf)
		}
	}
	unix.Unlink(filepath.Join(s.job.RunDir, s.job.ID+".sock")) //nolint:errcheck // the next agent would find it dead
	if s.job.Cgroup != "" {
		RemoveCgroup(s.job.Cgroup)
	}
	for _, c := range s.conns {
		unix.SetNonblock(c.fd, false) //nolint:errcheck // a socket
		tv := unix.NsecToTimeval(int64(time.Second))
		unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv) //nolint:errcheck // a socket
		writeAll(c.fd, c.out)
	}
}

// done: the process ended and nobody holds its output. Without a cgroup the
// shim also stays for orphans: only through it can they be found.
func (s *shim) done() bool {
	if !s.ended || s.out[0].fd >= 0 || s.out[1].fd >= 0 {
		return false
	}
	if s.job.Cgroup == "" {
		if _, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
			return false
		}
	}
	return true
}

// copy moves output to the spool until there is none or limit bytes were
// moved. It says whether it met the end of what is there.
func (s *shim) copy(i int, buf []byte, limit int) {
	src := &s.out[i]
	moved := false
	for n := 0; src.fd >= 0 && n < limit; {
		k, err := unix.Read(src.fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil || k <= 0 {
			// A terminal ends with EIO when nobody holds it open.
			unix.Close(src.fd)
			if src.fd == s.tty {
				s.tty, s.stdin.fd = -1, -1
			}
			src.fd = -1
			break
		}
		src.sp.append(buf[:k])
		n += k
		moved = true
	}
	if moved && s.state.Waiting.CompareAndSwap(1, 0) {
		s.tell(AppendMessage(nil, MsgWake))
	}
}

// reap collects children. Output that the process wrote is in the pipes when
// it has ended: what is there now is taken before the end is recorded.
func (s *shim) reap(buf []byte) {
	for {
		if n, err := unix.Read(s.child, buf); n <= 0 && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if pid == s.pid && !s.ended {
			s.ended, s.wait = true, ws
			if s.pidfd >= 0 {
				unix.Close(s.pidfd)
				s.pidfd = -1
			}
			for i := range s.out {
				if s.out[i].fd >= 0 {
					if n, err := unix.IoctlGetInt(s.out[i].fd, unix.TIOCINQ); err == nil && n > 0 {
						s.copy(i, buf, n)
					} else if err == nil && s.tty < 0 {
						// Nothing left: see whether it is closed.
						s.copy(i, buf, 1)
					}
				}
			}
			if s.tty >= 0 {
				// A terminal's output passes through the line discipline's
				// own buffer, which FIONREAD does not count.
				s.copy(0, buf, 1<<20)
			}
			s.finish()
		}
	}
}

// finish records the end and tells the agents.
func (s *shim) finish() {
	st := Status{
		PID: s.pid, TimedOut: s.timedOut, Error: s.execErr,
		FinishedUnixNS: time.Now().UnixNano(),
		StdoutEnd:      s.state.Streams[0].Total.Load(),
		StderrEnd:      s.state.Streams[1].Total.Load(),
	}
	if s.wait.Signaled() {
		st.Signal = int(s.wait.Signal())
	} else {
		st.ExitCode = s.wait.ExitStatus()
	}
	if s.pid == 0 {
		for i := range s.out {
			if s.out[i].fd >= 0 {
				unix.Close(s.out[i].fd)
				s.out[i].fd = -1
			}
		}
	}
	if s.stdin.fd >= 0 && !s.stdin.pty {
		unix.Close(s.stdin.fd)
		s.stdin.fd = -1
	}
	s.stdin.queue = nil
	b := message(0, st)[5:]
	if err := writeFile(filepath.Join(s.job.SpoolDir, "status"), b); err != nil {
		// A full disk. The agent that listens gets it all the same; a later
		// agent will have to say LOST.
		os.Remove(filepath.Join(s.job.SpoolDir, "status.tmp"))
	}
	s.tell(AppendMessage(nil, MsgExited, b))
}

// feed writes queued input.
func (s *shim) feed() {
	in := &s.stdin
	for in.fd >= 0 && len(in.queue) > 0 {
		n, err := unix.Write(in.fd, in.queue)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if err != nil {
			// The process closed its input.
			in.queue, in.close = nil, true
			break
		}
		in.queue = in.queue[n:]
	}
	if len(in.queue) == 0 {
		in.queue = nil
	}
	if in.close && in.fd >= 0 && len(in.queue) == 0 {
		if in.pty {
			in.queue, in.close = []byte{4}, false // end of transmission
			s.feed()
			return
		}
		unix.Close(in.fd)
		in.fd = -1
	}
}

func (s *shim) accept() {
	for {
		fd, _, err := unix.Accept4(s.listen, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if err != nil {
			return
		}
		c := &control{fd: fd}
		s.conns = append(s.conns, c)
		if s.ended {
			// The news that it may have missed.
			if b, err := os.ReadFile(filepath.Join(s.job.SpoolDir, "status")); err == nil {
				c.out = AppendMessage(nil, MsgExited, b)
				s.flush(c)
			}
		}
	}
}

// tell sends a message to every agent that listens.
func (s *shim) tell(msg []byte) {
	for _, c := range append([]*control(nil), s.conns...) {
		if len(c.out) > 64<<10 && msg[0] == MsgWake {
			continue // it has news enough to wake up on
		}
		c.out = append(c.out, msg...)
		s.flush(c)
	}
}

func (s *shim) flush(c *control) {
	for len(c.out) > 0 {
		n, err := unix.Write(c.fd, c.out)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if err != nil {
			s.drop(c)
			return
		}
		c.out = c.out[n:]
	}
	c.out = nil
}

func (s *shim) drop(c *control) {
	for i, x := range s.conns {
		if x == c {
			s.conns = append(append([]*control(nil), s.conns[:i]...), s.conns[i+1:]...)
			unix.Close(c.fd)
			c.fd = -1
			return
		}
	}
}

// talk serves one connection.
func (s *shim) talk(c *control, revents int16, buf []byte) {
	if c.fd < 0 {
		return
	}
	if revents&unix.POLLOUT != 0 {
		s.flush(c)
	}
	if c.fd < 0 || revents&(unix.POLLIN|unix.POLLHUP|unix.POLLERR) == 0 {
		return
	}
	n, err := unix.Read(c.fd, buf)
	if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
		return
	}
	if err != nil || n <= 0 {
		s.drop(c)
		return
	}
	c.in = append(c.in, buf[:n]...)
	for len(c.in) >= 5 {
		size := int(binary.LittleEndian.Uint32(c.in[1:]))
		if size > MaxMessage {
			s.drop(c)
			return
		}
		if len(c.in) < 5+size {
			break
		}
		s.handle(c, c.in[0], c.in[5:5+size])
		c.in = c.in[5+size:]
	}
	if len(c.in) == 0 {
		c.in = nil
	}
}
