package network

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
)

const (
	ethernetHeader = 14
	ipv4Header     = 20 // without options, which are not accepted
	udpHeader      = 8
	frameLimit     = ethernetHeader + 65535

	typeIPv4 = 0x0800
	typeARP  = 0x0806
	typeIPv6 = 0x86dd

	protoICMP = 1
	protoTCP  = 6
	protoUDP  = 17

	icmpEcho = 8
)

// appendEthernet appends the header of a frame from the gateway to the guest.
func appendEthernet(b []byte, kind uint16) []byte {
	b = append(b, guestMAC[:]...)
	b = append(b, gatewayMAC[:]...)
	return binary.BigEndian.AppendUint16(b, kind)
}

// appendIPv4 appends a header for payload bytes to come.
func appendIPv4(b []byte, protocol byte, src, dst netip.Addr, payload int) []byte {
	at := len(b)
	b = append(b, 0x45, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(ipv4Header+payload))
	b = append(b, 0, 0, 0, 0, 64, protocol, 0, 0)
	s, d := src.As4(), dst.As4()
	b = append(b, s[:]...)
	b = append(b, d[:]...)
	sum := ^internetSum(b[at:])
	b[at+10], b[at+11] = byte(sum>>8), byte(sum)
	return b
}

// internetSum is the Internet checksum's sum of b, not yet inverted.
func internetSum(b []byte) uint16 { return checksum.Checksum(b, 0) }
