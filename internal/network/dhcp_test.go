package network

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// dhcpMessage makes a client's frame; options are code, length, value.
func dhcpMessage(kind byte, ciaddr string, options ...byte) []byte {
	m := make([]byte, dhcpFixed)
	copy(m, []byte{1, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef})
	if ciaddr != "" {
		a := netip.MustParseAddr(ciaddr).As4()
		copy(m[12:], a[:])
	}
	copy(m[28:], guestMAC[:])
	binary.BigEndian.PutUint32(m[236:], dhcpMagic)
	m = append(m, optPad, optType, 1, kind)
	m = append(append(m, options...), optEnd)
	p := append([]byte{0, 68, 0, 67, byte((udpHeader + len(m)) >> 8), byte(udpHeader + len(m)), 0, 0}, m...)
	return frameOf(protoUDP, "255.255.255.255", p, at(0, broadcastMAC[:]...), setSource("0.0.0.0"))
}

// dhcpOptions reads the options of an answer's frame.
func dhcpOptions(t *testing.T, f []byte) map[byte]string {
	t.Helper()
	o := map[byte]string{}
	for b := f[ethernetHeader+ipv4Header+udpHeader+dhcpFixed:]; len(b) > 0 && b[0] != optEnd; {
		o[b[0]] = string(b[2 : 2+b[1]])
		b = b[2+int(b[1]):]
	}
	return o
}

const (
	optionGateway = "\xc0\xa8\x7f\x01"
	optionGuest   = "\xc0\xa8\x7f\x02"
)

func TestDHCP(t *testing.T) {
	r := newRoom(t, Config{MTU: 9000})
	requested := append([]byte{optRequested, 4}, optionGuest...)
	other := []byte{optRequested, 4, 10, 0, 2, 15}
	for _, c := range []struct {
		name  string
		frame []byte
		want  byte // kind of the answer, 0 is none
		to    string
	}{
		{"discover", dhcpMessage(dhcpDiscover, ""), dhcpOffer, "255.255.255.255"},
		{"request", dhcpMessage(dhcpRequest, "", append(requested, append([]byte{optServer, 4}, optionGateway...)...)...), dhcpAck, "255.255.255.255"},
		{"request of what it had", dhcpMessage(dhcpRequest, "", requested...), dhcpAck, "255.255.255.255"},
		{"renewal", dhcpMessage(dhcpRequest, "192.168.127.2"), dhcpAck, "192.168.127.2"},
		{"inform", dhcpMessage(dhcpInform, "192.168.127.2"), dhcpAck, "192.168.127.2"},
		{"request of another address", dhcpMessage(dhcpRequest, "", other...), dhcpNak, "255.255.255.255"},
		{"renewal of another address", dhcpMessage(dhcpRequest, "10.0.2.15"), dhcpNak, "255.255.255.255"},
		{"request of another server", dhcpMessage(dhcpRequest, "", append(requested, optServer, 4, 10, 0, 2, 2)...), 0, ""},
		{"release", dhcpMessage(7, "192.168.127.2"), 0, ""},
		{"an option that is cut", dhcpMessage(dhcpDiscover, "", optRequested, 200), 0, ""},
		{"another hardware address", func() []byte { f := dhcpMessage(dhcpDiscover, ""); f[42+33] ^= 1; return f }(), 0, ""},
		{"no magic", func() []byte { f := dhcpMessage(dhcpDiscover, ""); f[42+236] = 0; return f }(), 0, ""},
		{"an answer", func() []byte { f := dhcpMessage(dhcpDiscover, ""); f[42] = 2; return f }(), 0, ""},
	} {
		f := r.guest.answerTo(c.frame)
		if c.want == 0 {
			if f != nil {
				t.Errorf("%s: answered %x", c.name, f)
			}
			continue
		}
		if f == nil {
			t.Errorf("%s: no answer", c.name)
			continue
		}
		o := dhcpOptions(t, f)
		m := f[ethernetHeader+ipv4Header+udpHeader:]
		if o[optType] != string(c.want) || o[optServer] != optionGateway || string(m[4:8]) != "\xde\xad\xbe\xef" ||
			netip.AddrFrom4([4]byte(f[30:34])) != netip.MustParseAddr(c.to) || ^internetSum(f[14:34]) != 0 {
			t.Errorf("%s: %x", c.name, f)
		}
		if c.want == dhcpNak {
			continue
		}
		if o[optMask] != "\xff\xff\xff\x00" || o[optRouter] != optionGateway || o[optDNS] != optionGateway || o[optMTU] != "\x23\x28" {
			t.Errorf("%s: options %x", c.name, o)
		}
		if inform := c.name == "inform"; !inform && (string(m[16:20]) != optionGuest || o[optLease] != "\xff\xff\xff\xff") {
			t.Errorf("%s: address %x, lease %x", c.name, m[16:20], o[optLease])
		}
	}
}
