package network

import (
	"encoding/binary"
	"net/netip"
)

// DHCP as of RFC 2131 and 2132, as far as one guest with one address needs it.
const (
	dhcpFixed   = 240 // bytes before the options, magic included
	dhcpMinimum = 300 // some clients ignore shorter messages
	dhcpMagic   = 0x63825363

	dhcpDiscover = 1
	dhcpOffer    = 2
	dhcpRequest  = 3
	dhcpAck      = 5
	dhcpNak      = 6
	dhcpInform   = 8

	optPad       = 0
	optMask      = 1
	optRouter    = 3
	optDNS       = 6
	optMTU       = 26
	optRequested = 50
	optLease     = 51
	optType      = 53
	optServer    = 54
	optEnd       = 255
)

// dhcpQuestion is what a client's message asks for.
type dhcpQuestion struct {
	kind      byte
	client    netip.Addr // ciaddr: the address it has and uses
	requested netip.Addr // the address it would like
	server    netip.Addr // whom it chose
}

// parseDHCP reads the payload of a datagram to port 67.
func parseDHCP(b []byte) (q dhcpQuestion, ok bool) {
	if len(b) < dhcpFixed || b[0] != 1 || b[1] != 1 || b[2] != 6 || hardwareAddr(b[28:34]) != guestMAC ||
		binary.BigEndian.Uint32(b[236:]) != dhcpMagic {
		return q, false
	}
	q.client = netip.AddrFrom4([4]byte(b[12:16]))
	for o := b[dhcpFixed:]; len(o) > 0 && o[0] != optEnd; {
		if o[0] == optPad {
			o = o[1:]
			continue
		}
		if len(o) < 2 || len(o) < 2+int(o[1]) {
			return q, false
		}
		value := o[2 : 2+int(o[1])]
		switch {
		case o[0] == optType && len(value) == 1:
			q.kind = value[0]
		case o[0] == optRequested && len(value) == 4:
			q.requested = netip.AddrFrom4([4]byte(value))
		case o[0] == optServer && len(value) == 4:
			q.server = netip.AddrFrom4([4]byte(value))
		}
		o = o[2+len(value):]
	}
	return q, q.kind != 0
}

// answer is the kind of message that answers q; 0 is silence.
func (q dhcpQuestion) answer() byte {
	switch q.kind {
	case dhcpDiscover:
		return dhcpOffer
	case dhcpInform:
		return dhcpAck
	case dhcpRequest:
		if q.server.IsValid() && q.server != GatewayAddress {
			return 0
		}
		want := q.requested
		if !want.IsValid() {
			want = q.client
		}
		if want == GuestAddress {
			return dhcpAck
		}
		return dhcpNak
	}
	return 0
}

// answerDHCP gives the frame that answers the DHCP frame f, or nil. There is
// one lease, it is always the same and it never ends: a guest that was cloned
// has it without asking, and one that asks again gets what it has.
func answerDHCP(f []byte, mtu int) []byte {
	ip := f[ethernetHeader:]
	ip = ip[:binary.BigEndian.Uint16(ip[2:])]
	request := ip[ipv4Header+udpHeader:]
	q, ok := parseDHCP(request)
	if !ok {
		return nil
	}
	kind := q.answer()
	if kind == 0 {
		return nil
	}
	gateway, guest := GatewayAddress.As4(), GuestAddress.As4()
	m := make([]byte, dhcpFixed, dhcpMinimum)
	copy(m, []byte{2, 1, 6, 0})
	copy(m[4:8], request[4:8])     // transaction
	copy(m[10:12], request[10:12]) // flags
	copy(m[28:44], request[28:44]) // hardware address
	binary.BigEndian.PutUint32(m[236:], dhcpMagic)
	m = append(m, optType, 1, kind, optServer, 4)
	m = append(m, gateway[:]...)
	if kind != dhcpNak {
		copy(m[12:16], request[12:16])
		if q.kind != dhcpInform {
			copy(m[16:], guest[:])
			m = append(m, optLease, 4, 255, 255, 255, 255)
		}
		m = append(m, optMask, 4, 255, 255, 255, 0, optRouter, 4)
		m = append(m, gateway[:]...)
		m = append(m, optDNS, 4)
		m = append(m, gateway[:]...)
		m = append(m, optMTU, 2, byte(mtu>>8), byte(mtu))
	}
	m = append(m, optEnd)
	m = m[:max(len(m), dhcpMinimum)]

	to := broadcastIP
	if kind != dhcpNak && q.client == GuestAddress {
		to = GuestAddress
	}
	r := make([]byte, 0, ethernetHeader+ipv4Header+udpHeader+len(m))
	r = appendEthernet(r, typeIPv4)
	r = appendIPv4(r, protoUDP, GatewayAddress, to, udpHeader+len(m))
	// No UDP checksum: IPv4 allows that, and the link loses and changes nothing.
	r = append(r, 0, 67, 0, 68, byte((udpHeader+len(m))>>8), byte(udpHeader+len(m)), 0, 0)
	return append(r, m...)
}
