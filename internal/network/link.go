package network

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// link is the wire between the hypervisor and the stack. It owns all of layer
// two (Ethernet headers, ARP, DHCP), so that the stack sees nothing but vetted
// IPv4. Its framing is that of QEMU's stream netdev: a length of four bytes,
// big-endian, then the Ethernet frame.
type link struct {
	mtu      uint32
	counters *counters
	// dropped is told of frames that a user might ask about.
	dropped    func(verdict, packet)
	queue      *queue
	dispatcher atomic.Pointer[stack.NetworkDispatcher]

	mu   sync.Mutex
	up   chan struct{} // closed while there is a connection
	here bool
}

// placeLimit is far above what a hypervisor hands on of one frame: a driver in
// the guest can make some that are too long, and must not end the link by it,
// which the hypervisor may offer once only.
const placeLimit = 1 << 20

func newLink(mtu int, c *counters, dropped func(verdict, packet)) *link {
	return &link{mtu: uint32(mtu), counters: c, dropped: dropped, queue: newQueue(), up: make(chan struct{})}
}

// run moves frames over conn until it fails or ctx ends, and closes it.
// frames says how many came.
func (l *link) run(ctx context.Context, conn net.Conn) (frames uint64, err error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	l.queue.start()
	var writer sync.WaitGroup
	writer.Go(func() {
		// A write that fails ends the reader as well.
		if l.queue.drain(conn) != nil {
			conn.Close()
		}
	})
	l.setUp(true)
	defer func() {
		l.setUp(false)
		l.queue.stop()
		conn.Close()
		writer.Wait()
	}()
	in := bufio.NewReaderSize(conn, 32<<10)
	var length [4]byte
	for {
		if _, err := io.ReadFull(in, length[:]); err != nil {
			return frames, err
		}
		n := binary.BigEndian.Uint32(length[:])
		switch {
		case n > placeLimit:
			return frames, fmt.Errorf("network: a frame of %d bytes: the link has lost its place", n)
		case n > frameLimit:
			if _, err := io.CopyN(io.Discard, in, int64(n)); err != nil {
				return frames, err
			}
			l.counters.framesIn.Add(1)
			l.counters.bytesIn.Add(uint64(n))
			l.counters.filtered[dropMalformed].Add(1)
			continue
		}
		v := buffer.NewViewSize(int(n))
		if _, err := io.ReadFull(in, v.AsSlice()); err != nil {
			v.Release()
			return frames, err
		}
		frames++
		l.input(v)
	}
}

func (l *link) setUp(up bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.here = up
	if up {
		close(l.up)
	} else {
		l.up = make(chan struct{})
	}
}

func (l *link) connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.here
}

// await returns when there is a connection or ctx ends.
func (l *link) await(ctx context.Context) error {
	l.mu.Lock()
	up := l.up
	l.mu.Unlock()
	select {
	case <-up:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// input takes one frame of the guest and owns v.
func (l *link) input(v *buffer.View) {
	f := v.AsSlice()
	l.counters.framesIn.Add(1)
	l.counters.bytesIn.Add(uint64(len(f)))
	verdict, p := classify(f)
	switch verdict {
	case toStack:
		if d := l.dispatcher.Load(); d != nil {
			v = datagramOf(v)
			pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithView(v)})
			(*d).DeliverNetworkPacket(ipv4.ProtocolNumber, pkt)
			pkt.DecRef()
			return
		}
	case toARP:
		l.send(answerARP(f))
	case toDHCP:
		l.send(answerDHCP(f, int(l.mtu)))
	default:
		l.counters.filtered[verdict].Add(1)
		l.dropped(verdict, p)
	}
	v.Release()
}

// datagramOf takes the frame v, which classify has let pass, and gives the IP
// datagram in it. What the stack keeps it counts by the datagram's length, and
// what it keeps is the view's whole memory: behind a datagram of a few bytes a
// guest can have a frame of 64 KiB, so one that is longer than what it carries
// is not handed on but copied.
func datagramOf(v *buffer.View) *buffer.View {
	f := v.AsSlice()
	end := ethernetHeader + int(binary.BigEndian.Uint16(f[ethernetHeader+2:]))
	if end == len(f) {
		v.TrimFront(ethernetHeader)
		return v
	}
	d := buffer.NewViewWithData(f[ethernetHeader:end])
	v.Release()
	return d
}

// send queues a whole frame; nil is nothing to send.
func (l *link) send(f []byte) {
	if f != nil {
		l.put(len(f), func(b []byte) []byte { return append(b, f...) })
	}
}

func (l *link) put(n int, fill func([]byte) []byte) {
	if !l.queue.put(n, fill) {
		l.counters.framesLost.Add(1)
		return
	}
	l.counters.framesOut.Add(1)
	l.counters.bytesOut.Add(uint64(n))
}

// WritePackets implements stack.LinkWriter. A packet that finds no room is
// lost; the stack is never told, for it would only send the same again.
func (l *link) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	for _, p := range pkts.AsSlice() {
		l.put(ethernetHeader+p.Size(), func(b []byte) []byte {
			b = appendEthernet(b, typeIPv4)
			for _, s := range p.AsSlices() {
				b = append(b, s...)
			}
			return b
		})
	}
	return pkts.Len(), nil
}

// Attach implements stack.NetworkLinkEndpoint.
func (l *link) Attach(d stack.NetworkDispatcher) {
	if d == nil {
		l.dispatcher.Store(nil)
		return
	}
	l.dispatcher.Store(&d)
}

// IsAttached implements stack.NetworkLinkEndpoint.
func (l *link) IsAttached() bool { return l.dispatcher.Load() != nil }

// Capabilities implements stack.NetworkLinkEndpoint: the link is a socket of
// this machine, checksums of what came over it need no second look.
func (l *link) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload
}

// What follows has nothing to do here: layer two is the link's own affair.

func (l *link) MTU() uint32                             { return l.mtu }
func (l *link) SetMTU(uint32)                           {}
func (l *link) MaxHeaderLength() uint16                 { return 0 }
func (l *link) LinkAddress() tcpip.LinkAddress          { return tcpip.LinkAddress(gatewayMAC[:]) }
func (l *link) SetLinkAddress(tcpip.LinkAddress)        {}
func (l *link) Wait()                                   {}
func (l *link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (l *link) AddHeader(*stack.PacketBuffer)           {}
func (l *link) ParseHeader(*stack.PacketBuffer) bool    { return true }
func (l *link) Close()                                  {}
func (l *link) SetOnCloseAction(func())                 {}
