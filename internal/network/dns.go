package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
)

const (
	dnsPort = 53
	// maxLookups is how many questions may be with the host's resolver at once;
	// further ones are dropped, and a guest's resolver asks again.
	maxLookups = 64
	// maxDNSConns is how many TCP connections to the resolver a guest may have.
	maxDNSConns = 16
	// maxQuestion bounds a question in bytes.
	maxQuestion = 1024

	lookupTimeout = 8 * time.Second
	dnsConnIdle   = 10 * time.Second
)

var dnsAddress = netip.AddrPortFrom(GatewayAddress, dnsPort)

// dnsServer is the guest's only resolver, on port 53 of the gateway.
type dnsServer struct {
	*Network
	tcp     *gonet.TCPListener
	lookups chan struct{} // a place for each
	conns   chan struct{} // a place for each
}

// serveDNS starts the resolver; what it starts, Close waits for.
func (n *Network) serveDNS() (*dnsServer, error) {
	s := &dnsServer{Network: n, lookups: make(chan struct{}, maxLookups), conns: make(chan struct{}, maxDNSConns)}
	at := tcpip.FullAddress{NIC: nic, Addr: stackAddress(GatewayAddress), Port: dnsPort}
	var err error
	if s.tcp, err = gonet.ListenTCP(n.stack, at, ipv4.ProtocolNumber); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	n.working.Add(1) // nobody can have closed n yet
	go func() {
		defer n.leave()
		s.serveTCP()
	}()
	return s, nil
}

// close ends serveTCP; its connections end with the network's context.
func (s *dnsServer) close() { s.tcp.Shutdown() }

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

func (s *dnsServer) serveTCP() {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		c, err := s.tcp.Accept()
		if err != nil {
			return
		}
		select {
		case s.conns <- struct{}{}:
		default:
			c.Close()
			continue
		}
		conns.Go(func() {
			defer func() { <-s.conns }()
			defer c.Close()
			defer context.AfterFunc(s.ctx, func() { c.SetDeadline(time.Unix(1, 0)) })()
			s.serveConn(c)
		})
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
