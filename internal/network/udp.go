package network

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	// udpOneShot ends a flow that was one question and its answers at most,
	// udpStream one that was more.
	udpOneShot = 30 * time.Second
	udpStream  = 2 * time.Minute

	// A datagram that fills its buffer may have been cut: it is dropped, and
	// the flow gets a buffer that holds any.
	datagramSmall = 4 << 10
	datagramMost  = 64 << 10
)

// udpFlow moves the datagrams between one port of the guest and one
// destination.
type udpFlow struct {
	*flow
	guest    *gonet.UDPConn
	port     uint16 // the guest's
	upstream net.Conn
	idle     *idleTimer
	sent     int // by the guest
	answered atomic.Bool
}

// forwardUDP takes the first datagram between two endpoints. false makes the
// stack answer with port unreachable. It runs on the link's reader and does not
// block.
func (n *Network) forwardUDP(r *udp.ForwarderRequest) bool {
	if !n.enter() {
		return false
	}
	ctx, cut := context.WithCancel(n.ctx)
	f := &udpFlow{flow: &flow{protocol: UDP, destination: destination(r.ID()), cut: cut}, port: r.ID().RemotePort}
	if !n.open(f.flow) {
		cut()
		n.leave()
		return false
	}
	var queue waiter.Queue
	ep, terr := r.CreateEndpoint(&queue)
	if terr != nil {
		n.flows.remove(f.flow)
		cut()
		n.leave()
		return false
	}
	n.counters.udpOpened.Add(1)
	f.guest = gonet.NewUDPConn(&queue, ep)
	go func() {
		defer n.leave()
		defer n.flows.remove(f.flow)
		defer cut()
		if refused := f.run(ctx, n); refused {
			n.link.send(portUnreachable(f.port, f.destination))
		}
	}()
	return true
}

// run moves datagrams until the flow is idle, cut or refused. It says whether
// it ended because the destination has nobody for them.
func (f *udpFlow) run(ctx context.Context, n *Network) (refused bool) {
	defer f.guest.Close()
	var err error
	if f.upstream, err = n.dial(ctx, f.flow); err != nil {
		return ctx.Err() == nil
	}
	ended := make(chan struct{})
	defer func() {
		f.cut()
		<-ended
	}()
	context.AfterFunc(ctx, func() {
		defer close(ended)
		f.guest.SetDeadline(time.Unix(1, 0)) // an endpoint is closed only once, by run
		f.upstream.Close()
	})
	f.idle = newIdleTimer(udpOneShot, f.cut)
	defer f.idle.stop()

	var questions sync.WaitGroup
	questions.Go(func() {
		defer f.cut()
		f.questions()
	})
	err = f.answers()
	f.cut()
	questions.Wait()
	return errors.Is(err, syscall.ECONNREFUSED)
}

// questions moves datagrams of the guest. One that cannot be sent is lost, as
// datagrams are.
func (f *udpFlow) questions() {
	buf := make([]byte, datagramSmall)
	for {
		n, err := f.guest.Read(buf)
		if err != nil {
			return
		}
		if n == len(buf) && n < datagramMost {
			buf = make([]byte, datagramMost)
			continue
		}
		f.idle.touch()
		if f.sent++; f.sent == 2 && f.answered.Load() {
			f.idle.setLimit(udpStream)
		}
		f.upstream.Write(buf[:n])
	}
}

// answers moves datagrams to the guest.
func (f *udpFlow) answers() error {
	buf := make([]byte, datagramSmall)
	for {
		n, err := f.upstream.Read(buf)
		if err != nil {
			return err
		}
		if n == len(buf) && n < datagramMost {
			buf = make([]byte, datagramMost)
			continue
		}
		f.idle.touch()
		f.answered.Store(true)
		f.guest.Write(buf[:n])
	}
}

// portUnreachable makes the frame that tells the guest's socket on port that
// nobody takes its datagrams to the destination.
func portUnreachable(port uint16, to netip.AddrPort) []byte {
	const icmpHeader = 8
	quoted := ipv4Header + udpHeader
	f := make([]byte, 0, ethernetHeader+ipv4Header+icmpHeader+quoted)
	f = appendEthernet(f, typeIPv4)
	f = appendIPv4(f, protoICMP, to.Addr(), GuestAddress, icmpHeader+quoted)
	at := len(f)
	f = append(f, 3, 3, 0, 0, 0, 0, 0, 0)
	f = appendIPv4(f, protoUDP, GuestAddress, to.Addr(), udpHeader)
	f = append(f, byte(port>>8), byte(port), byte(to.Port()>>8), byte(to.Port()), 0, udpHeader, 0, 0)
	sum := ^checksum(f[at:])
	f[at+2], f[at+3] = byte(sum>>8), byte(sum)
	return f
}
