package network

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// sendUDP sends the guest a datagram, in fragments if it exceeds the MTU. One
// that the link has no room for is lost.
func (n *Network) sendUDP(from netip.AddrPort, port uint16, payload []byte) {
	route, err := n.stack.FindRoute(nic, stackAddress(from.Addr()), stackAddress(GuestAddress), ipv4.ProtocolNumber, false)
	if err != nil {
		return // the stack is being closed
	}
	defer route.Release()
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: header.UDPMinimumSize + int(route.MaxHeaderLength()),
		Payload:            buffer.MakeWithData(payload),
	})
	defer pkt.DecRef()
	h := header.UDP(pkt.TransportHeader().Push(header.UDPMinimumSize))
	pkt.TransportProtocolNumber = header.UDPProtocolNumber
	length := uint16(pkt.Size())
	h.Encode(&header.UDPFields{SrcPort: from.Port(), DstPort: port, Length: length})
	sum := route.PseudoHeaderChecksum(header.UDPProtocolNumber, length)
	sum = h.CalculateChecksum(checksum.Combine(sum, pkt.Data().Checksum()))
	if sum != 0xffff {
		sum = ^sum // a sum of zero would mean none
	}
	h.SetChecksum(sum)
	route.WritePacket(stack.NetworkHeaderParams{Protocol: header.UDPProtocolNumber, TTL: route.DefaultTTL()}, pkt)
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
	sum := ^internetSum(f[at:])
	f[at+2], f[at+3] = byte(sum>>8), byte(sum)
	return f
}
