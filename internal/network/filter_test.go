package network

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// frameOf makes a frame of the guest; edits change what should be wrong with it.
func frameOf(protocol byte, dst string, payload []byte, edits ...func([]byte)) []byte {
	f := append([]byte(nil), gatewayMAC[:]...)
	f = append(f, guestMAC[:]...)
	f = binary.BigEndian.AppendUint16(f, typeIPv4)
	f = appendIPv4(f, protocol, GuestAddress, netip.MustParseAddr(dst), len(payload))
	f = append(f, payload...)
	for _, edit := range edits {
		edit(f)
	}
	return f
}

func at(i int, b ...byte) func([]byte) { return func(f []byte) { copy(f[i:], b) } }

func setSource(a string) func([]byte) {
	x := netip.MustParseAddr(a).As4()
	return at(26, x[:]...)
}

func udpTo(port uint16, payload ...byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, 40000)
	b = binary.BigEndian.AppendUint16(b, port)
	b = binary.BigEndian.AppendUint16(b, uint16(udpHeader+len(payload)))
	return append(append(b, 0, 0), payload...)
}

func TestClassify(t *testing.T) {
	datagram := udpTo(53, 'x')
	segment := make([]byte, 20)
	ping := []byte{icmpEcho, 0, 0, 0, 0, 1, 0, 1}
	dhcp := append([]byte{0, 68, 0, 67, 0, 9, 0, 0}, 'x')
	broadcast := at(0, broadcastMAC[:]...)
	for _, c := range []struct {
		name  string
		frame []byte
		want  verdict
	}{
		{"TCP to anyone", frameOf(protoTCP, "198.51.100.7", segment), toStack},
		{"UDP to anyone", frameOf(protoUDP, "198.51.100.7", datagram), toStack},
		{"what the judge denies", frameOf(protoTCP, "10.0.2.2", segment), toStack},
		{"a ping to the gateway", frameOf(protoICMP, "192.168.127.1", ping), toStack},
		{"a fragment", frameOf(protoUDP, "198.51.100.7", datagram, at(20, 0x20)), toStack},
		{"a fragment of a segment", frameOf(protoTCP, "198.51.100.7", make([]byte, leastFragment), at(20, 0x20)), toStack},
		{"the last fragment of a segment", frameOf(protoTCP, "198.51.100.7", segment[:8], at(21, 1)), toStack},
		{"a crumb of a segment", frameOf(protoTCP, "198.51.100.7", make([]byte, leastFragment-8), at(20, 0x20)), dropMalformed},
		{"ARP", frameOf(protoUDP, "198.51.100.7", datagram, broadcast, at(12, 8, 6)), toARP},
		{"DHCP", frameOf(protoUDP, "255.255.255.255", dhcp, broadcast, setSource("0.0.0.0")), toDHCP},
		{"DHCP renewal", frameOf(protoUDP, "192.168.127.1", dhcp), toDHCP},
		{"DHCP of someone else", frameOf(protoUDP, "255.255.255.255", dhcp, broadcast, setSource("10.0.0.1")), dropSpoofed},
		{"DHCP in fragments", frameOf(protoUDP, "255.255.255.255", dhcp, broadcast, setSource("0.0.0.0"), at(20, 0x20)), dropSpoofed},
		{"to the loopback", frameOf(protoTCP, "127.0.0.1", segment), dropMartian},
		{"to nobody", frameOf(protoTCP, "0.0.0.0", segment), dropMartian},
		{"to itself", frameOf(protoTCP, "192.168.127.2", segment), dropMartian},
		{"IPv6", frameOf(protoUDP, "198.51.100.7", datagram, at(12, 0x86, 0xdd)), dropIPv6},
		{"IPv6 to all nodes", frameOf(protoUDP, "198.51.100.7", datagram, at(0, 0x33, 0x33), at(12, 0x86, 0xdd)), dropIPv6},
		{"VLAN", frameOf(protoUDP, "198.51.100.7", datagram, at(12, 0x81, 0)), dropForeign},
		{"another hardware source", frameOf(protoTCP, "198.51.100.7", segment, at(11, 0xff)), dropSpoofed},
		{"another hardware destination", frameOf(protoTCP, "198.51.100.7", segment, at(5, 0x77)), dropForeign},
		{"multicast by Ethernet", frameOf(protoUDP, "198.51.100.7", datagram, at(0, 1, 0, 0x5e)), dropMulticast},
		{"unicast broadcast by Ethernet", frameOf(protoUDP, "198.51.100.7", datagram, broadcast), dropMulticast},
		{"another source", frameOf(protoTCP, "198.51.100.7", segment, setSource("198.51.100.7")), dropSpoofed},
		{"the gateway as source", frameOf(protoTCP, "198.51.100.7", segment, setSource("192.168.127.1")), dropSpoofed},
		{"multicast", frameOf(protoUDP, "224.0.0.251", datagram), dropMulticast},
		{"broadcast", frameOf(protoUDP, "255.255.255.255", datagram), dropMulticast},
		{"a ping to anyone", frameOf(protoICMP, "198.51.100.7", ping), dropProtocol},
		{"other ICMP to the gateway", frameOf(protoICMP, "192.168.127.1", at2(ping, 5)), dropProtocol},
		{"IGMP", frameOf(2, "192.168.127.1", ping), dropProtocol},
		{"GRE", frameOf(47, "198.51.100.7", ping), dropProtocol},
		{"IP options", frameOf(protoTCP, "198.51.100.7", segment, at(14, 0x46)), dropMalformed},
		{"IP of no version", frameOf(protoTCP, "198.51.100.7", segment, at(14, 0x55)), dropMalformed},
		{"a length beyond the frame", frameOf(protoTCP, "198.51.100.7", segment, at(16, 0xff, 0xff)), dropMalformed},
		{"a length within the header", frameOf(protoTCP, "198.51.100.7", segment, at(16, 0, 19)), dropMalformed},
		{"a cut header", frameOf(protoTCP, "198.51.100.7", segment)[:33], dropMalformed},
		{"no header", make([]byte, 13), dropMalformed},
		{"nothing", nil, dropMalformed},
		{"too much", make([]byte, frameLimit+1), dropMalformed},
	} {
		if got, _ := classify(c.frame); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func at2(b []byte, first byte) []byte {
	b = append([]byte(nil), b...)
	b[0] = first
	return b
}

// answerTo sends a frame and gives the first that comes back, nil if none does
// before the answer to a ping that was sent after it.
func (g *testGuest) answerTo(frame []byte) []byte {
	got := make(chan []byte, 64)
	g.onFrame(func(f []byte) bool {
		got <- append([]byte(nil), f...)
		return true
	})
	defer g.onFrame(nil)
	g.send(frame)
	g.pings++
	last := 0x8000 | g.pings
	g.send(frameOf(protoICMP, "192.168.127.1", pingOf(last)))
	for {
		select {
		case f := <-got:
			isPing := len(f) >= 42 && f[23] == protoICMP && f[34] == 0
			switch id := binary.BigEndian.Uint16(f[38:]); {
			case isPing && id == last:
				return nil
			case isPing && id&0x8000 != 0: // of an earlier question
			default:
				return f
			}
		case <-testContext(g.t).Done():
			g.t.Fatal("not even the ping was answered")
		}
	}
}

func pingOf(id uint16) []byte {
	p := []byte{icmpEcho, 0, 0, 0, byte(id >> 8), byte(id), 0, 1}
	sum := ^internetSum(p)
	p[2], p[3] = byte(sum>>8), byte(sum)
	return p
}

func arpFor(a string) []byte {
	f := append([]byte(nil), broadcastMAC[:]...)
	f = append(f, guestMAC[:]...)
	f = append(f, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	f = append(f, guestMAC[:]...)
	me, you := GuestAddress.As4(), netip.MustParseAddr(a).As4()
	f = append(f, me[:]...)
	f = append(f, 0, 0, 0, 0, 0, 0)
	return append(f, you[:]...)
}

// TestNeighbours: the gateway answers ARP and pings, for itself alone.
func TestNeighbours(t *testing.T) {
	r := newRoom(t, Config{})
	f := r.guest.answerTo(arpFor("192.168.127.1"))
	if len(f) != 42 || header.Ethernet(f).SourceAddress() != "\x52\x54\x00\x5f\x0b\xfe" || [6]byte(f[22:28]) != gatewayMAC ||
		netip.AddrFrom4([4]byte(f[28:32])) != GatewayAddress || netip.AddrFrom4([4]byte(f[38:42])) != GuestAddress {
		t.Errorf("the gateway's ARP answer is %x", f)
	}
	for _, a := range []string{"192.168.127.2", "192.168.127.3", "8.8.8.8"} {
		if f := r.guest.answerTo(arpFor(a)); f != nil {
			t.Errorf("ARP for %s was answered: %x", a, f)
		}
	}
	if f := r.guest.answerTo(frameOf(protoICMP, "192.168.127.1", pingOf(7))); len(f) < 42 || f[34] != 0 || f[39] != 7 {
		t.Errorf("the gateway's echo is %x", f)
	}
	for _, a := range []string{"8.8.8.8", "127.0.0.1", "192.168.127.3"} {
		if f := r.guest.answerTo(frameOf(protoICMP, a, pingOf(7))); f != nil {
			t.Errorf("a ping to %s was answered: %x", a, f)
		}
	}
	// What is dropped is counted, and what a user may miss is listed.
	r.guest.answerTo(frameOf(protoTCP, "198.51.100.7", make([]byte, 20), setSource("10.9.9.9")))
	r.guest.answerTo(frameOf(protoTCP, "198.51.100.7", make([]byte, 20), at(12, 0x86, 0xdd)))
	s := r.Stats()
	if s.Filtered.Protocol != 2 || s.Filtered.Martian != 1 || s.Filtered.Spoofed != 1 || s.Filtered.IPv6 != 1 {
		t.Errorf("filtered %+v", s.Filtered)
	}
	if d := r.Denials(); len(d) != 4 || d[0].Protocol != "icmp" || d[3].Protocol != TCP {
		t.Errorf("denials %+v", d)
	}
}
