package network

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

// heap is what is on the heap that is not garbage, in bytes.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// segment makes a TCP segment of the guest in a frame.
func segment(port uint16, to string, seq, ack uint32, flags header.TCPFlags, window uint16, payload ...byte) []byte {
	a := netip.MustParseAddrPort(to)
	b := make([]byte, header.TCPMinimumSize, header.TCPMinimumSize+len(payload))
	header.TCP(b).Encode(&header.TCPFields{
		SrcPort: port, DstPort: a.Port(), SeqNum: seq, AckNum: ack,
		DataOffset: header.TCPMinimumSize, Flags: flags, WindowSize: window,
	})
	f := frameOf(protoTCP, a.Addr().String(), append(b, payload...))
	sum := transportSum(f)
	f[50], f[51] = byte(sum>>8), byte(sum)
	return f
}

// segmentIn gives the TCP segment in a frame to the guest, nil if there is none.
func segmentIn(frame []byte) header.TCP {
	if len(frame) < ethernetHeader+ipv4Header+header.TCPMinimumSize || frame[23] != protoTCP {
		return nil
	}
	return header.TCP(frame[ethernetHeader+ipv4Header:])
}

// fragment makes a first fragment of a datagram that never has a second.
func fragment(i int) []byte {
	f := frameOf(protoUDP, "198.51.100.7", udpTo(53, 1, 2, 3, 4, 5, 6, 7, 8), at(18, byte(i>>8), byte(i), 0x20, 0), at(33, byte(i>>16)))
	return summed(f)
}

// summed sets the checksum of f's IP header.
func summed(f []byte) []byte {
	f[24], f[25] = 0, 0
	sum := ^internetSum(f[14:34])
	f[24], f[25] = byte(sum>>8), byte(sum)
	return f
}

// crumb makes the i-th fragment of a stream of segments that are all out of
// order, with 8 bytes of the stream in it.
func crumb(i int, port uint16, to string, ack uint32) []byte {
	const each = 1000 // fragments of one segment
	k := i % each
	body := make([]byte, 8)
	offset := 2 + k // the first has the header and four bytes
	if k == 0 {
		offset = 0
		body = segment(port, to, uint32(3+i/each%7*8*each), ack, header.TCPFlagAck, 65535, 1, 2, 3, 4)[ethernetHeader+ipv4Header:]
	}
	if k < each-1 {
		offset |= 0x2000 // more to come
	}
	f := frameOf(protoTCP, netip.MustParseAddrPort(to).Addr().String(), body)
	binary.BigEndian.PutUint16(f[18:], uint16(i/each)^port<<10)
	binary.BigEndian.PutUint16(f[20:], uint16(offset))
	return summed(f)
}

// padded puts f into as long a frame as there is.
func padded(f []byte) []byte { return append(f, make([]byte, frameLimit-len(f))...) }

// TestFloods sends what costs the sender little and a careless receiver memory:
// empty datagrams to a socket, first fragments without a second, connections to
// a destination that never answers, and a few bytes in frames and datagrams
// that are much longer. What counts is the heap: the network's own counters
// are what such a flood passes by.
func TestFloods(t *testing.T) {
	noLeaks(t)
	const waiting, open = "198.51.100.9", "198.51.100.8:80"
	w := &world{hang: map[string]bool{public: true}}
	w.serveUDP(t, "198.51.100.7:53")
	w.serve(t, open, func(c *net.TCPConn) { io.Copy(io.Discard, c) })
	const flows = 32 // of datagrams that wait, of each kind
	for i := range 2 * flows {
		w.hang[netip.AddrPortFrom(netip.MustParseAddr(waiting), uint16(1000+i)).String()] = true
	}
	accepted := make(chan header.TCP, 1)
	n := wiredNetwork(t, Config{Dialer: w, DialTimeout: time.Hour}, func(f []byte) {
		if s := segmentIn(f); s != nil && s.Flags() == header.TCPFlagSyn|header.TCPFlagAck {
			accepted <- s
		}
	})
	input := func(frame []byte) { n.link.input(buffer.NewViewWithData(frame)) }
	var acks [4]uint32
	for i := range acks {
		port := uint16(50000 + i)
		input(segment(port, open, 1, 0, header.TCPFlagSyn, 65535))
		select {
		case s := <-accepted:
			acks[i] = s.SequenceNumber() + 1
		case <-testContext(t).Done():
			t.Fatal("the connection was not accepted")
		}
		input(segment(port, open, 2, acks[i], header.TCPFlagAck, 65535))
	}
	datagram := frameOf(protoUDP, "198.51.100.7", udpTo(53))
	input(datagram)
	for _, flood := range []struct {
		name  string
		count int
		frame func(i int) []byte
	}{
		{"empty datagrams", 200000, func(int) []byte { return datagram }},
		{"fragments", 200000, fragment},
		{"connections", 200000, func(i int) []byte { return segment(uint16(i), public, 0, 0, header.TCPFlagSyn, 65535) }},
		{"segments out of order, in long frames", 4000, func(i int) []byte {
			return padded(segment(50000, open, uint32(3+2*(i%16000)), acks[0], header.TCPFlagAck, 65535, 'x'))
		}},
		{"fragments in long frames", 4000, func(i int) []byte { return padded(fragment(i)) }},
		{"segments out of order, in small fragments", 300000, func(i int) []byte {
			return crumb(i/3, uint16(50001+i%3), open, acks[1+i%3])
		}},
		{"datagrams in long frames", flows * udpQueue, func(i int) []byte {
			return padded(frameOf(protoUDP, waiting, udpTo(uint16(1000+i%flows), 'x')))
		}},
		{"datagrams with a short UDP length", flows * udpQueue, func(i int) []byte {
			p := udpTo(uint16(1000+flows+i%flows), make([]byte, 60000)...)
			binary.BigEndian.PutUint16(p[4:], udpHeader+1)
			return frameOf(protoUDP, waiting, p)
		}},
	} {
		before := heap()
		for i := range flood.count {
			input(flood.frame(i))
			if i%50000 == 0 {
				n.bounded(t)
			}
		}
		if after := heap(); after > before+20<<20 {
			t.Errorf("%s: the heap grew from %d to %d bytes", flood.name, before, after)
		}
	}
	if s := n.Stats(); s.TCPFlows != maxDials+len(acks) || s.UDPFlows < 2*flows || s.DatagramsLost == 0 {
		t.Errorf("stats %+v", s)
	}
	n.Close()
	if n.udp.backlog != 0 {
		t.Errorf("%d bytes still wait", n.udp.backlog)
	}
}

// stubborn is a guest's TCP that asks the resolver and lets no answer come: its
// window is zero, every probe is acknowledged, and nothing is ever ended by it
// but its half of the connection.
type stubborn struct {
	got              chan header.TCP
	accepted, resets atomic.Int32
}

// take hands a frame to answer.
func (g *stubborn) take(f []byte) {
	if s := segmentIn(f); s != nil && s.SourcePort() == dnsPort {
		g.got <- s
	}
}

// answer acknowledges what the network sends until ctx ends.
func (g *stubborn) answer(ctx context.Context, n *Network, question []byte) {
	for {
		var s header.TCP
		select {
		case s = <-g.got:
		case <-ctx.Done():
			return
		}
		ack := s.SequenceNumber() + uint32(len(s.Payload()))
		flags := header.TCPFlags(header.TCPFlagAck)
		var payload []byte
		switch {
		case s.Flags().Contains(header.TCPFlagRst):
			g.resets.Add(1)
			continue
		case s.Flags().Contains(header.TCPFlagSyn):
			g.accepted.Add(1)
			ack++
			flags |= header.TCPFlagFin
			payload = question
		}
		f := segment(s.DestinationPort(), dnsAddress.String(), s.AckNumber(), ack, flags, 0, payload...)
		n.link.input(buffer.NewViewWithData(f))
	}
}

// TestDNSConnsFlood: connections to the resolver that the guest keeps from
// ending are no more than the cap, and end nevertheless.
func TestDNSConnsFlood(t *testing.T) {
	noLeaks(t)
	g := &stubborn{got: make(chan header.TCP, 4096)}
	n := wiredNetwork(t, Config{Resolver: &zone{records: map[string][]dnsmessage.ResourceBody{"example.org.": {a("198.51.100.7")}}}}, g.take)
	n.dns.drain = 20 * time.Millisecond
	q := query(t, "example.org.", dnsmessage.TypeA, 0)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { g.answer(ctx, n, append(binary.BigEndian.AppendUint16(nil, uint16(len(q))), q...)) })
	defer wg.Wait()
	defer cancel()
	port := uint16(0)
	eventually(t, "many connections came and went", func() bool {
		for range 100 {
			port++
			n.link.input(buffer.NewViewWithData(segment(port, dnsAddress.String(), 1, 0, header.TCPFlagSyn, 0)))
		}
		if held := len(n.stack.RegisteredEndpoints()); held > maxDNSConns {
			t.Fatalf("the stack holds %d connections", held)
		}
		return g.accepted.Load() > 5*maxDNSConns
	})
	eventually(t, "the last is gone", func() bool { return len(n.dns.conns) == 0 && len(n.stack.RegisteredEndpoints()) == 0 })
	if s := n.Stats(); s.Denied.Limit == 0 || s.Questions < 4*maxDNSConns || g.resets.Load() == 0 {
		t.Errorf("%d resets, stats %+v", g.resets.Load(), s)
	}
	// And the resolver goes on.
	before := n.Stats().Questions
	n.link.input(buffer.NewViewWithData(segment(0xffff, dnsAddress.String(), 1, 0, header.TCPFlagSyn, 0)))
	eventually(t, "another question is answered", func() bool { return n.Stats().Questions > before })
}
