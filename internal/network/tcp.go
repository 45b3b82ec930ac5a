package network

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	// keepaliveIdle finds peers that are gone without a word: a server behind a
	// cut line, or a guest that was reset.
	keepaliveIdle     = 5 * time.Minute
	keepaliveInterval = time.Minute
	keepaliveCount    = 9

	// drainLimit is how long the guest may take to read the rest of a
	// connection that both sides have ended.
	drainLimit = 30 * time.Second
)

// handleTCP takes a segment of no connection. It runs on the link's reader and
// does not block. Connections to the resolver are counted apart: dials that hang
// must not hold up a guest's look-ups.
func (n *Network) handleTCP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	if destination(id) == dnsAddress {
		return n.dns.tcp.HandlePacket(id, pkt)
	}
	return n.tcp.HandlePacket(id, pkt)
}

// forwardTCP takes the first segment of a connection. The destination is
// judged, then dialled, and only then is the guest's handshake answered: a
// denial and a refusal look to the guest as they would without a gateway.
func (n *Network) forwardTCP(r *tcp.ForwarderRequest) {
	if !n.enter() {
		r.Complete(true)
		return
	}
	defer n.leave()
	ctx, cut := context.WithCancel(n.ctx)
	defer cut()
	f := &flow{protocol: TCP, destination: destination(r.ID()), cut: cut}
	if !n.open(f) {
		r.Complete(true)
		return
	}
	defer n.flows.remove(f)
	upstream, err := n.dial(ctx, f)
	if err != nil {
		r.Complete(true)
		return
	}
	var queue waiter.Queue
	ep, terr := r.CreateEndpoint(&queue)
	r.Complete(terr != nil)
	if terr != nil {
		reset(upstream)
		return
	}
	n.counters.tcpOpened.Add(1)
	prepare(ep, upstream, f.buffer)

	guest := gonet.NewTCPConn(&queue, ep)
	aborted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(aborted)
		ep.Abort()
		reset(upstream)
	})
	if relay(guest, upstream, n.config.MTU, n.lender, cut) {
		upstream.Close()
		drain(ctx, ep, &queue, drainLimit)
	}
	if !stop() {
		<-aborted
	}
}

// destination of a flow, as the guest wrote it.
func destination(id stack.TransportEndpointID) netip.AddrPort {
	return netip.AddrPortFrom(hostAddress(id.LocalAddress), id.LocalPort)
}

// dial connects to the very address that was judged.
func (n *Network) dial(ctx context.Context, f *flow) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, n.config.DialTimeout)
	defer cancel()
	c, err := n.config.Dialer.DialContext(ctx, string(f.protocol), f.destination.String())
	if errors.Is(err, errOwnAddress) {
		n.deny(deniedAddress, f.protocol, f.destination, n.pins.names(f.destination.Addr()), "an address of this host")
	} else if err != nil {
		n.counters.dialsFailed.Add(1)
	}
	return c, err
}

// prepare sets a flow's buffers. A flow of many gets small ones in the host's
// kernel too, which otherwise would hold megabytes for each.
func prepare(ep tcpip.Endpoint, upstream net.Conn, buffer int) {
	ep.SocketOptions().SetReceiveBufferSize(int64(buffer), true)
	ep.SocketOptions().SetSendBufferSize(int64(buffer), true)
	setKeepalive(ep)
	if c, ok := upstream.(interface {
		SetReadBuffer(int) error
		SetWriteBuffer(int) error
	}); ok && buffer < bufferDefault {
		c.SetReadBuffer(buffer)
		c.SetWriteBuffer(buffer)
	}
}

func setKeepalive(ep tcpip.Endpoint) {
	idle, interval := tcpip.KeepaliveIdleOption(keepaliveIdle), tcpip.KeepaliveIntervalOption(keepaliveInterval)
	ep.SetSockOpt(&idle)
	ep.SetSockOpt(&interval)
	ep.SetSockOptInt(tcpip.KeepaliveCountOption, keepaliveCount)
	ep.SocketOptions().SetKeepAlive(true)
}

// drain ends the guest's side and waits until the guest has read everything, so
// that the connection counts for as long as it holds memory. After limit it is
// reset. When ctx ends drain returns, and who ended it must abort ep.
func drain(ctx context.Context, ep tcpip.Endpoint, queue *waiter.Queue, limit time.Duration) {
	entry, ended := waiter.NewChannelEntry(waiter.EventHUp)
	queue.EventRegister(&entry)
	defer queue.EventUnregister(&entry)
	ep.Close()
	if ep.Readiness(waiter.EventHUp) != 0 {
		return
	}
	patience := time.NewTimer(limit)
	defer patience.Stop()
	select {
	case <-ended:
	case <-ctx.Done():
	case <-patience.C:
		ep.Abort()
	}
}

// reset closes c so that its peer sees a failure, not an end.
func reset(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(int) error }); ok {
		l.SetLinger(0)
	}
	c.Close()
}
