//go:build unix

// Package sshtest is an sshd for tests, in this process: it takes one public
// key, and runs each command with sh on this host. Nothing that is shipped uses
// it.
package sshtest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"
)

// Server listens on loopback until the test ends.
type Server struct {
	Addr    string
	HostKey ssh.PublicKey
	Client  ssh.Signer // the key that it takes
	// Wrap changes the command before it is run; for faults. May be nil.
	Wrap func(command string) string

	l      net.Listener
	conf   *ssh.ServerConfig
	ctx    context.Context // of the commands
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	conns    map[net.Conn]bool
	accepted int
	over     bool
}

// NewKey makes a key.
func NewKey(t testing.TB) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// New starts a server.
func New(t testing.TB) *Server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host := NewKey(t)
	s := &Server{Addr: l.Addr().String(), HostKey: host.PublicKey(), Client: NewKey(t), l: l, conns: map[net.Conn]bool{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	want := s.Client.PublicKey().Marshal()
	s.conf = &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if !bytes.Equal(key.Marshal(), want) {
			return nil, errors.New("another key")
		}
		return nil, nil
	}}
	s.conf.AddHostKey(host)
	s.wg.Go(s.accept)
	t.Cleanup(s.Close)
	return s
}

// Close ends the server, its connections and the commands that they left.
func (s *Server) Close() {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	s.l.Close()
	s.Cut()
	s.cancel()
	s.wg.Wait()
}

// Cut ends the connections there are.
func (s *Server) Cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close()
	}
}

// Accepted is how many connections came.
func (s *Server) Accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted
}

func (s *Server) accept() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.over {
			s.mu.Unlock()
			c.Close()
			return
		}
		s.conns[c] = true
		s.accepted++
		s.mu.Unlock()
		s.wg.Go(func() {
			s.serve(c)
			c.Close()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		})
	}
}

func (s *Server) serve(c net.Conn) {
	conn, channels, requests, err := ssh.NewServerConn(c, s.conf)
	if err != nil {
		return
	}
	defer conn.Close()
	go ssh.DiscardRequests(requests) // ends with the connection
	var wg sync.WaitGroup
	defer wg.Wait()
	for n := range channels {
		if n.ChannelType() != "session" {
			n.Reject(ssh.UnknownChannelType, "only sessions")
			continue
		}
		ch, reqs, err := n.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			for r := range reqs {
				var exec struct{ Command string }
				if r.Type != "exec" || ssh.Unmarshal(r.Payload, &exec) != nil {
					r.Reply(false, nil)
					continue
				}
				r.Reply(true, nil)
				wg.Go(func() { s.run(ch, exec.Command) })
			}
		})
	}
}

// run is a command's life: as with a real sshd, one whose connection is lost
// gets the end of its input and no more.
func (s *Server) run(ch ssh.Channel, command string) {
	defer ch.Close()
	if s.Wrap != nil {
		command = s.Wrap(command)
	}
	cmd := exec.CommandContext(s.ctx, "sh", "-c", command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Dir = "/"
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return
	}
	cmd.Stdout, cmd.Stderr = ch, ch.Stderr()
	if err := cmd.Start(); err != nil {
		return
	}
	go func() { // ends with the channel
		io.Copy(stdin, ch)
		stdin.Close()
	}()
	code := 0
	if err := cmd.Wait(); err != nil {
		code = 255
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() >= 0 {
			code = exit.ExitCode()
		}
	}
	ch.SendRequest("exit-status", false, binary.BigEndian.AppendUint32(nil, uint32(code)))
}
