package network

import (
	"context"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// lingerLimit is how long a closed connection may take to hand the guest what
// was written: a guest that no longer reads must not keep it for ever.
const lingerLimit = time.Minute

// guestConn is the host's end of a connection into the guest.
type guestConn struct {
	*gonet.TCPConn
	ep   tcpip.Endpoint
	once sync.Once
}

// Close sends what was written and ends the connection; it does not wait.
func (c *guestConn) Close() error {
	c.once.Do(func() {
		limit := tcpip.TCPUserTimeoutOption(lingerLimit)
		c.ep.SetSockOpt(&limit)
		c.TCPConn.Close()
	})
	return nil
}

// dialStack connects from the gateway to a port of the guest.
func dialStack(ctx context.Context, s *stack.Stack, port int) (*guestConn, error) {
	var queue waiter.Queue
	ep, terr := s.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, &queue)
	if terr != nil {
		return nil, stackError("make a socket", terr)
	}
	entry, connected := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	queue.EventRegister(&entry)
	defer queue.EventUnregister(&entry)
	terr = ep.Bind(tcpip.FullAddress{NIC: nic, Addr: stackAddress(GatewayAddress)})
	if terr == nil {
		terr = ep.Connect(tcpip.FullAddress{NIC: nic, Addr: stackAddress(GuestAddress), Port: uint16(port)})
	}
	if _, started := terr.(*tcpip.ErrConnectStarted); started {
		select {
		case <-connected:
			terr = ep.LastError()
		case <-ctx.Done():
			ep.Abort()
			return nil, ctx.Err()
		}
	}
	if terr != nil {
		ep.Close()
		if _, refused := terr.(*tcpip.ErrConnectionRefused); refused {
			return nil, ErrRefused
		}
		return nil, stackError("connect to the guest", terr)
	}
	setKeepalive(ep)
	return &guestConn{TCPConn: gonet.NewTCPConn(&queue, ep), ep: ep}, nil
}
