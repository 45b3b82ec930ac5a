package network

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	dnsPort = 53
	// maxLookups is how many questions may be with the host's resolver at once;
	// further ones are dropped, and a guest's resolver asks again.
	maxLookups = 64
	// maxDNSConns is how many TCP connections to the resolver a guest may have,
	// those included that are over for the resolver but not yet for the guest.
	maxDNSConns = 16
	// dnsBuffer is the stack's buffer of one, in bytes, each way.
	dnsBuffer = bufferLeast
	// maxQuestion bounds a question in bytes.
	maxQuestion = 1024

	lookupTimeout = 8 * time.Second
	dnsConnIdle   = 10 * time.Second
	// dnsDrain is how long the guest may take to read what it asked for and to
	// end a connection that the resolver has ended.
	dnsDrain = 5 * time.Second
)

var dnsAddress = netip.AddrPortFrom(GatewayAddress, dnsPort)

// dnsServer is the guest's only resolver, on port 53 of the gateway.
type dnsServer struct {
	*Network
	tcp     *tcp.Forwarder
	lookups chan struct{} // a place for each
	conns   chan struct{} // a place for each connection that the stack holds
	drain   time.Duration
}

func newDNSServer(n *Network) *dnsServer {
	s := &dnsServer{Network: n, lookups: make(chan struct{}, maxLookups), conns: make(chan struct{}, maxDNSConns), drain: dnsDrain}
	s.tcp = tcp.NewForwarder(n.stack, dnsBuffer, maxDNSConns, s.connection)
	return s
}

// datagram takes a question that came by UDP and does not block.
func (s *dnsServer) datagram(port uint16, question []byte) {
	if len(question) > maxQuestion || !s.enter() {
		s.counters.questionsLost.Add(1)
		return
	}
	select {
	case s.lookups <- struct{}{}:
	default:
		s.leave()
		s.counters.questionsLost.Add(1)
		return
	}
	go func() {
		defer s.leave()
		defer func() { <-s.lookups }()
		if a := s.answer(question, true); a != nil {
			s.sendUDP(dnsAddress, port, a)
		}
	}()
}

// connection takes the first segment of a connection. It finds its place before
// the stack makes anything of it and keeps that until the stack has nothing of
// it left, which a guest that stops reading does not decide. One that finds none
// is reset.
func (s *dnsServer) connection(r *tcp.ForwarderRequest) {
	if !s.enter() {
		r.Complete(true)
		return
	}
	defer s.leave()
	select {
	case s.conns <- struct{}{}:
		defer func() { <-s.conns }()
	default:
		s.deny(deniedLimit, TCP, dnsAddress, nil, "too many open connections to the resolver")
		r.Complete(true)
		return
	}
	var queue waiter.Queue
	ep, err := r.CreateEndpoint(&queue)
	r.Complete(err != nil)
	if err != nil {
		return
	}
	ep.SocketOptions().SetReceiveBufferSize(dnsBuffer, true)
	ep.SocketOptions().SetSendBufferSize(dnsBuffer, true)
	aborted := make(chan struct{})
	stop := context.AfterFunc(s.ctx, func() {
		defer close(aborted)
		ep.Abort()
	})
	s.serveConn(gonet.NewTCPConn(&queue, ep))
	drain(s.ctx, ep, &queue, s.drain)
	if !stop() {
		<-aborted
	}
}

// serveConn answers the questions of one connection, one after the other.
func (s *dnsServer) serveConn(c net.Conn) {
	for s.ctx.Err() == nil {
		c.SetDeadline(time.Now().Add(dnsConnIdle))
		question, err := readMessage(c, maxQuestion)
		if err != nil {
			return
		}
		select {
		case s.lookups <- struct{}{}:
		case <-s.ctx.Done():
			return
		}
		a := s.answer(question, false)
		<-s.lookups
		c.SetDeadline(time.Now().Add(dnsConnIdle))
		if a == nil || writeMessage(c, a) != nil {
			return
		}
	}
}

var errMessageSize = errors.New("the message is too long")

// readMessage reads one length-prefixed message of at most limit bytes.
func readMessage(r io.Reader, limit int) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n > limit {
		return nil, errMessageSize
	}
	m := make([]byte, n)
	_, err := io.ReadFull(r, m)
	return m, err
}

func writeMessage(w io.Writer, m []byte) error {
	if len(m) > 65535 {
		return errMessageSize
	}
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(m))), m...))
	return err
}
