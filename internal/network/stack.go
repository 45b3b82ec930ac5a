package network

import (
	"fmt"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

const (
	nic = tcpip.NICID(1)

	// bufferDefault and bufferMax are per connection and direction. They bound
	// what still reaches a guest after its flow was denied.
	bufferMin     = 4 << 10
	bufferDefault = 256 << 10
	bufferMax     = 1 << 20

	// timeWait is short: on a wire of one hop no old segment turns up later,
	// and while it lasts the stack takes no new connection of the same ports,
	// which a guest's containers may well open.
	timeWait = time.Millisecond
)

var quiet sync.Once

// newStack makes the TCP/IP stack that ends the guest's connections. It takes
// packets for every address (the guest's destinations are all "local") and
// sends from every address. It answers pings for the gateway only because the
// link lets no others in.
func newStack(l *link) (*stack.Stack, error) {
	// The stack's own log goes to stderr, past ours, and a guest can make it
	// write: leave only what should never happen.
	quiet.Do(func() { log.SetLevel(log.Warning) })
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	if err := configure(s, l); err != nil {
		s.Destroy()
		return nil, stackError("set up the stack", err)
	}
	return s, nil
}

func configure(s *stack.Stack, l *link) tcpip.Error {
	sack := tcpip.TCPSACKEnabled(true)
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: bufferMin, Default: bufferDefault, Max: bufferMax}
	send := tcpip.TCPSendBufferSizeRangeOption{Min: bufferMin, Default: bufferDefault, Max: bufferMax}
	wait := tcpip.TCPTimeWaitTimeoutOption(timeWait)
	for _, o := range []tcpip.SettableTransportProtocolOption{&sack, &receive, &send, &wait} {
		if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			return err
		}
	}
	if err := s.CreateNIC(nic, l); err != nil {
		return err
	}
	address := tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: stackAddress(GatewayAddress).WithPrefix()}
	if err := s.AddProtocolAddress(nic, address, stack.AddressProperties{}); err != nil {
		return err
	}
	if err := s.SetPromiscuousMode(nic, true); err != nil {
		return err
	}
	if err := s.SetSpoofing(nic, true); err != nil {
		return err
	}
	everywhere, err := tcpip.NewSubnet(tcpip.AddrFrom4([4]byte{}), tcpip.MaskFromBytes(make([]byte, 4)))
	if err != nil {
		return &tcpip.ErrInvalidOptionValue{}
	}
	s.SetRouteTable([]tcpip.Route{{Destination: everywhere, NIC: nic}})
	return nil
}

// stackError makes an error of what the stack says.
func stackError(what string, err tcpip.Error) error {
	return fmt.Errorf("network: %s: %s", what, err)
}
