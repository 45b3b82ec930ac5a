package network

import (
	"encoding/binary"
	"net/netip"
)

// verdict says what becomes of a frame from the guest.
type verdict int

const (
	toStack verdict = iota
	toARP
	toDHCP
	dropMalformed // cut short, IP options, a length that lies, crumbs of a TCP segment
	dropForeign   // not for the gateway: another hardware address, a protocol that is neither IPv4, ARP nor IPv6
	dropIPv6      // not carried
	dropSpoofed   // from a hardware or IP address that is not the guest's
	dropMartian   // to an address that no packet on a wire has: 0/8, 127/8, the guest's own
	dropMulticast // to a group or a broadcast address
	dropProtocol  // ICMP to anyone but the gateway; what is neither TCP, UDP nor ICMP
	verdicts      // how many there are
)

// packet is what a log says of a dropped frame; its fields may be zero.
type packet struct {
	protocol byte
	src, dst netip.Addr
}

// leastFragment is the least payload, in bytes, of a fragment of a TCP segment
// that is not the last. The stack counts a segment by its length and keeps the
// frames it came in, which in crumbs are many times that. No kernel makes such
// small ones: at the smallest MTU it is 552.
const leastFragment = 512

// classify judges a frame by its headers alone. The stack sees only what is
// toStack: IPv4 without options from the guest to a unicast address, TCP, UDP
// or an echo request to the gateway. Ports and addresses beyond that are the
// judge's.
func classify(f []byte) (verdict, packet) {
	if len(f) < ethernetHeader || len(f) > frameLimit {
		return dropMalformed, packet{}
	}
	dst, src := hardwareAddr(f[:6]), hardwareAddr(f[6:12])
	kind := binary.BigEndian.Uint16(f[12:])
	switch {
	case kind == typeIPv6:
		return dropIPv6, packet{}
	case src != guestMAC:
		return dropSpoofed, packet{}
	case dst == broadcastMAC, dst == gatewayMAC:
	case dst[0]&1 == 1:
		return dropMulticast, packet{}
	default:
		return dropForeign, packet{}
	}
	switch kind {
	case typeARP:
		return toARP, packet{}
	case typeIPv4:
		return classifyIPv4(f[ethernetHeader:], dst)
	}
	return dropForeign, packet{}
}

func classifyIPv4(ip []byte, dstMAC hardwareAddr) (verdict, packet) {
	if len(ip) < ipv4Header || ip[0] != 0x45 {
		return dropMalformed, packet{}
	}
	total := int(binary.BigEndian.Uint16(ip[2:]))
	if total < ipv4Header || total > len(ip) {
		return dropMalformed, packet{}
	}
	ip = ip[:total]
	payload := ip[ipv4Header:]
	fragment := binary.BigEndian.Uint16(ip[6:])&0x3fff != 0 // more fragments, or an offset
	more := ip[6]&0x20 != 0
	p := packet{
		protocol: ip[9],
		src:      netip.AddrFrom4([4]byte(ip[12:16])),
		dst:      netip.AddrFrom4([4]byte(ip[16:20])),
	}
	if p.protocol == protoUDP && !fragment && len(payload) > udpHeader &&
		binary.BigEndian.Uint16(payload) == 68 && binary.BigEndian.Uint16(payload[2:]) == 67 &&
		(p.src == GuestAddress || p.src.IsUnspecified()) && (p.dst == broadcastIP || p.dst == GatewayAddress) {
		return toDHCP, p
	}
	switch {
	case p.src != GuestAddress:
		return dropSpoofed, p
	case p.dst.IsMulticast(), p.dst == broadcastIP, dstMAC == broadcastMAC:
		return dropMulticast, p
	case p.dst.IsLoopback(), p.dst.As4()[0] == 0, p.dst == GuestAddress:
		return dropMartian, p
	case p.protocol == protoTCP && more && len(payload) < leastFragment:
		return dropMalformed, p
	case p.protocol == protoTCP, p.protocol == protoUDP:
		// Fragments pass: the stack puts them together, with a bound, and the
		// judge sees the whole.
		return toStack, p
	case p.protocol == protoICMP && p.dst == GatewayAddress && !fragment && len(payload) >= 8 && payload[0] == icmpEcho:
		return toStack, p
	}
	return dropProtocol, p
}
