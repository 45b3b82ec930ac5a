package sshlink

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
)

// stream is a relay's stdin and stdout, with the connection that they are all
// of.
type stream struct {
	client  *ssh.Client
	session *ssh.Session
	in      io.WriteCloser
	out     io.Reader
	stderr  *clip
	once    sync.Once
	dead    chan struct{} // closed when the connection has ended
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.out.Read(p)
	if errors.Is(err, io.EOF) {
		if said := s.stderr.String(); said != "" {
			err = fmt.Errorf("the relay in the guest ended: %s", said)
		}
	}
	return n, err
}

func (s *stream) Write(p []byte) (int, error) { return s.in.Write(p) }

// Close ends the connection at once; whoever reads or writes fails.
func (s *stream) Close() error {
	s.once.Do(func() {
		s.client.Close() //nolint:errcheck // the peer may have closed it
		<-s.dead
	})
	return nil
}

// over says whether the connection has ended.
func (s *stream) over() bool {
	select {
	case <-s.dead:
		return true
	default:
		return false
	}
}

// clip keeps the end of what a guest prints.
type clip struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const maxClip = 4 << 10

func (c *clip) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buf.Write(p[max(0, len(p)-maxClip):])
	if n := c.buf.Len() - maxClip; n > 0 {
		c.buf.Next(n)
	}
	return len(p), nil
}

// String is printable text on one line.
func (c *clip) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r == '\ufffd' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(c.buf.String(), " "))
	return strings.Join(strings.Fields(text), " ")
}
