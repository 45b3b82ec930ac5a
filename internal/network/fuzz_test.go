package network

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/buffer"
)

// bareNetwork is a network whose link is fed by hand and read by nobody who
// cares.
func bareNetwork(t testing.TB, config Config) *Network {
	t.Helper()
	return wiredNetwork(t, config, func([]byte) {})
}

// wiredNetwork is a network whose link is fed by hand; each gets the frames that
// come back, and must not feed it.
func wiredNetwork(t testing.TB, config Config, each func(frame []byte)) *Network {
	t.Helper()
	if config.Resolver == nil {
		config.Resolver = noResolver{}
	}
	if config.Dialer == nil {
		config.Dialer = &world{}
	}
	config.Interfaces = func() ([]netip.Prefix, error) { return nil, nil }
	n, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := net.Pipe()
	n.link.queue.start()
	done := make(chan struct{}, 2)
	go func() {
		n.link.queue.drain(ours)
		done <- struct{}{}
	}()
	go func() {
		for {
			f, err := readFrame(theirs)
			if err != nil {
				break
			}
			each(f)
		}
		done <- struct{}{}
	}()
	t.Cleanup(func() {
		n.link.queue.stop()
		ours.Close()
		<-done
		<-done
		n.Close()
	})
	return n
}

// frames reads a script of frames: a byte that says how to dress each, two of
// length, the bytes. Undressed bytes go in as they are.
func frames(script []byte, each func([]byte)) {
	destinations := []string{"192.168.127.1", "198.51.100.7", "127.0.0.1", "10.0.2.2", "255.255.255.255", "224.0.0.251", "192.168.127.2"}
	for len(script) > 3 {
		how := script[0]
		size := min(int(binary.BigEndian.Uint16(script[1:])), len(script)-3)
		body := script[3 : 3+size]
		script = script[3+size:]
		if len(body) > frameLimit-ethernetHeader-ipv4Header {
			continue
		}
		protocol := []byte{protoTCP, protoUDP, protoICMP, 2}[how>>2&3]
		to := destinations[int(how>>4)%len(destinations)]
		switch how & 3 {
		case 0:
			each(bytes.Clone(body))
		case 1:
			f := append(append([]byte(nil), gatewayMAC[:]...), guestMAC[:]...)
			each(append(f, body...))
		case 2:
			f := frameOf(protocol, to, body)
			sum := transportSum(f)
			switch {
			case protocol == protoTCP && len(body) >= 20:
				at(ethernetHeader+ipv4Header+16, byte(sum>>8), byte(sum))(f)
			case protocol == protoUDP && len(body) >= 8:
				at(ethernetHeader+ipv4Header+6, 0, 0)(f)
			}
			each(f)
		case 3:
			flags := []byte{0x20, 0, 0, 1}
			at := int(how >> 6)
			f := frameOf(protocol, to, body)
			f[20], f[21], f[24], f[25] = flags[at], how, 0, 0
			sum := ^internetSum(f[14:34])
			f[24], f[25] = byte(sum>>8), byte(sum)
			each(f)
		}
	}
}

// transportSum is what the checksum field of f's TCP header should be.
func transportSum(f []byte) uint16 {
	body := bytes.Clone(f[ethernetHeader+ipv4Header:])
	if len(body) < 20 {
		return 0
	}
	body[16], body[17] = 0, 0
	pseudo := append(bytes.Clone(f[26:34]), 0, protoTCP, byte(len(body)>>8), byte(len(body)))
	if len(body)%2 == 1 {
		body = append(body, 0)
	}
	return ^internetSum(append(pseudo, body...))
}

// bounded fails if anything that a guest can make grow has passed its bound.
// Memory that is not counted it does not see; TestFloods measures that.
func (n *Network) bounded(t testing.TB) {
	t.Helper()
	s := n.Stats()
	n.link.queue.mu.Lock()
	waiting := len(n.link.queue.pending) + n.link.queue.writing
	n.link.queue.mu.Unlock()
	n.udp.mu.Lock()
	backlog := n.udp.backlog
	n.udp.mu.Unlock()
	endpoints := len(n.stack.RegisteredEndpoints())
	if endpoints > maxTCPFlows+maxDNSConns || backlog > udpBacklog || s.TCPFlows > maxTCPFlows || s.UDPFlows > maxUDPFlows || s.PinnedAddrs > pinnedAddresses || len(n.Denials()) > denialsKept || waiting > queueLimit {
		t.Errorf("out of bounds: %+v, %d denials, %d connections in the stack, %d and %d bytes wait", s, len(n.Denials()), endpoints, waiting, backlog)
	}
}

func syn(to string, port uint16) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, 40000)
	binary.BigEndian.PutUint16(b[2:], port)
	b[12], b[13], b[14] = 0x50, 2, 0xff
	f := frameOf(protoTCP, to, b)
	sum := transportSum(f)
	f[50], f[51] = byte(sum>>8), byte(sum)
	return f
}

func FuzzFrame(f *testing.F) {
	script := func(how byte, body []byte) []byte {
		return append([]byte{how, byte(len(body) >> 8), byte(len(body))}, body...)
	}
	ethernet := ethernetHeader + ipv4Header
	f.Add(script(0, arpFor("192.168.127.1")))
	f.Add(script(0, dhcpMessage(dhcpDiscover, "")))
	f.Add(script(2|1<<4, syn("198.51.100.7", 80)[ethernet:]))
	f.Add(script(2, syn("192.168.127.1", 53)[ethernet:]))
	f.Add(script(2|1<<2, udpTo(53, query(f, "example.org.", dnsmessage.TypeA, 1232)...)))
	f.Add(script(2|1<<2|1<<4, udpTo(9, 'x')))
	f.Add(script(2|2<<2, pingOf(1)))
	f.Add(append(script(3|1<<2|1<<4, udpTo(9, make([]byte, 64)...)), script(3|1<<2|1<<4|1<<6, make([]byte, 64))...))
	n := bareNetwork(f, Config{})
	f.Fuzz(func(t *testing.T, b []byte) {
		frames(b, func(frame []byte) { n.link.input(buffer.NewViewWithData(frame)) })
		n.bounded(t)
	})
}

func FuzzDHCP(f *testing.F) {
	f.Add(dhcpMessage(dhcpDiscover, "")[42:])
	f.Add(dhcpMessage(dhcpRequest, "192.168.127.2", optServer, 4, 1, 2, 3, 4)[42:])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1500 {
			return
		}
		p := append([]byte{0, 68, 0, 67, byte((udpHeader + len(b)) >> 8), byte(udpHeader + len(b)), 0, 0}, b...)
		frame := frameOf(protoUDP, "255.255.255.255", p, at(0, broadcastMAC[:]...), setSource("0.0.0.0"))
		if v, _ := classify(frame); v != toDHCP && len(b) > 0 {
			t.Fatalf("verdict %d", v)
		}
		if a := answerDHCP(frame, DefaultMTU); a != nil && (len(a) > 600 || ^internetSum(a[14:34]) != 0) {
			t.Errorf("answer %x", a)
		}
	})
}

// FuzzDNS gives hostile questions of the guest and hostile answers of the world.
func FuzzDNS(f *testing.F) {
	q := query(f, "example.org.", dnsmessage.TypeA, 1232)
	f.Add(q, []byte{}, true)
	f.Add(q, []byte("\x07example\x03org\x00\x00\x01\x00\x01\x00\x00\x0e\x10\x00\x04\x7f\x00\x00\x01"), false)
	f.Add(query(f, "1.0.0.127.in-addr.arpa.", dnsmessage.TypePTR, 0), []byte{}, true)
	f.Add(query(f, "lb._dns-sd._udp.0.1.168.192.in-addr.arpa.", dnsmessage.TypePTR, 0), []byte{}, true)
	f.Add(q, []byte("\x011\x011\x03168\x03192\x07in-addr\x04arpa\x00\x00\x0c\x00\x01\x00\x00\x0e\x10\x00\x06\x04host\x00"), false)
	z := &mirror{}
	n := bareNetwork(f, Config{Resolver: z})
	f.Fuzz(func(t *testing.T, question, records []byte, udp bool) {
		z.records = records
		a := n.dns.answer(question, udp)
		n.bounded(t)
		if a == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(a); err != nil {
			t.Fatalf("%v in %x", err, a)
		}
		if udp && len(a) > ednsMost || len(a) > maxAnswer {
			t.Errorf("an answer of %d bytes", len(a))
		}
		for _, r := range m.Answers {
			if b, ok := r.Body.(*dnsmessage.AResource); ok && n.denied.reason(netip.AddrFrom4(b.A)) != "" || r.Header.TTL > maxTTL || r.Header.Type == dnsmessage.TypeAAAA {
				t.Errorf("%v was handed out", r)
			}
			if n.dns.reverseDenied(plainName(r.Header.Name)) {
				t.Errorf("%v names a neighbour of the host", r)
			}
		}
	})
}

// TestHostileFrames throws noise that looks like traffic at the whole stack:
// nothing panics, and nothing is kept.
func TestHostileFrames(t *testing.T) {
	noLeaks(t)
	n := bareNetwork(t, Config{})
	seed := rand.NewPCG(1, 2)
	random := rand.New(seed)
	script := make([]byte, 0, 512)
	throw := func(count int) {
		for range count {
			script = append(script[:0], byte(random.Uint32()), 0, byte(random.Uint32()))
			for range script[2] {
				script = append(script, byte(random.Uint32()))
			}
			if len(script) > 24 && random.IntN(2) == 0 {
				script[15], script[16] = 0x50, byte(random.Uint32())&0x3f // a TCP header's length and flags
			}
			frames(script, func(frame []byte) { n.link.input(buffer.NewViewWithData(frame)) })
		}
	}
	throw(20000)
	before := heap()
	throw(100000)
	n.bounded(t)
	eventually(t, "what hostile frames opened is gone", func() bool { return n.Stats().TCPFlows == 0 })
	if after := heap(); after > before+32<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
}
