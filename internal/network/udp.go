package network

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

const (
	// udpOneShot ends a flow that was one question and its answers at most,
	// udpStream one that was more.
	udpOneShot = 30 * time.Second
	udpStream  = 2 * time.Minute

	// udpBacklog bounds the bytes of all datagrams that wait for the host's
	// sockets, udpQueue their number in one flow. Further ones are lost. An
	// empty datagram costs datagramCost as well: by their payload alone a guest
	// could make any number wait.
	udpBacklog   = 4 << 20
	udpQueue     = 256
	datagramCost = 256
)

// udpKey names a flow: a port of the guest and a destination.
type udpKey struct {
	port        uint16
	destination netip.AddrPort
}

// udpFlows are the UDP flows of one network. The stack's own UDP sockets have
// no place here: what they queue is bounded by payload, and empty datagrams
// have none.
type udpFlows struct {
	mu      sync.Mutex
	open    map[udpKey]*udpFlow
	backlog int // bytes that wait, with their cost
}

type udpFlow struct {
	*flow
	udpKey
	out      chan []byte // datagrams of the guest that wait
	upstream net.Conn
	idle     *idleTimer
	sent     atomic.Int64 // datagrams of the guest
	answered atomic.Bool
	stream   sync.Once // it is known to be one
}

// handleUDP takes a datagram of the guest. false makes the stack answer with
// port unreachable. It runs on the link's reader and does not block.
func (n *Network) handleUDP(id stack.TransportEndpointID, pkt *stack.PacketBuffer) bool {
	h := header.UDP(pkt.TransportHeader().Slice())
	size := int(h.Length()) - header.UDPMinimumSize
	if size < 0 || size > pkt.Data().Size() {
		n.counters.filtered[dropMalformed].Add(1)
		return true
	}
	// A copy of that size: what waits is counted by its length.
	payload := pkt.Data().AsRange().Capped(size).ToSlice()
	k := udpKey{id.RemotePort, destination(id)}
	if k.destination == dnsAddress {
		n.dns.datagram(k.port, payload)
		return true
	}
	if n.udp.offer(k, payload, &n.counters) {
		return true
	}
	f := n.openUDP(k)
	if f == nil {
		return false
	}
	n.udp.offer(k, payload, &n.counters)
	return true
}

// openUDP begins a flow, unless it is denied.
func (n *Network) openUDP(k udpKey) *udpFlow {
	if !n.enter() {
		return nil
	}
	ctx, cut := context.WithCancel(n.ctx)
	f := &udpFlow{
		flow:   &flow{protocol: UDP, destination: k.destination, cut: cut},
		udpKey: k,
		out:    make(chan []byte, udpQueue),
	}
	if !n.open(f.flow) {
		cut()
		n.leave()
		return nil
	}
	n.counters.udpOpened.Add(1)
	n.udp.add(f)
	go func() {
		defer n.leave()
		defer n.flows.remove(f.flow)
		defer cut()
		refused := f.run(ctx, n)
		n.udp.remove(f)
		if refused {
			n.link.send(portUnreachable(k.port, k.destination))
		}
	}()
	return f
}

func (u *udpFlows) add(f *udpFlow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.open[f.udpKey] = f
}

// remove ends offers to f and forgets what waits.
func (u *udpFlows) remove(f *udpFlow) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.open, f.udpKey)
	for {
		select {
		case b := <-f.out:
			u.backlog -= len(b) + datagramCost
		default:
			return
		}
	}
}

// offer hands a datagram to its flow and says whether there is one. What finds
// no room is lost.
func (u *udpFlows) offer(k udpKey, payload []byte, c *counters) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	f := u.open[k]
	if f == nil {
		return false
	}
	cost := len(payload) + datagramCost
	if u.backlog+cost > udpBacklog || len(f.out) == cap(f.out) {
		c.datagramsLost.Add(1)
		return true
	}
	u.backlog += cost
	f.out <- payload
	return true
}

func (u *udpFlows) taken(b []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.backlog -= len(b) + datagramCost
}

// run moves datagrams until the flow is idle, cut or refused. It says whether
// it ended because the destination has nobody for them.
func (f *udpFlow) run(ctx context.Context, n *Network) (refused bool) {
	var err error
	if f.upstream, err = n.dial(ctx, f.flow); err != nil {
		return ctx.Err() == nil
	}
	defer f.upstream.Close()
	stop := context.AfterFunc(ctx, func() { f.upstream.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	f.idle = newIdleTimer(udpOneShot, f.cut)
	defer f.idle.stop()

	var answers sync.WaitGroup
	answers.Go(func() {
		err = f.answers(n)
		f.cut()
	})
	refused = f.questions(ctx, n)
	answers.Wait()
	return refused || errors.Is(err, syscall.ECONNREFUSED)
}

// questions moves datagrams of the guest. One that cannot be sent is lost, as
// datagrams are; but a refusal of an earlier one, which the system tells either
// direction and once only, ends the flow.
func (f *udpFlow) questions(ctx context.Context, n *Network) (refused bool) {
	for {
		select {
		case <-ctx.Done():
			return false
		case b := <-f.out:
			f.sent.Add(1)
			f.moved()
			_, err := f.upstream.Write(b)
			n.udp.taken(b)
			if errors.Is(err, syscall.ECONNREFUSED) {
				f.cut()
				return true
			}
		}
	}
}

// moved notes a datagram, whichever way it went. A flow is a stream once there
// were two questions and an answer, in any order.
func (f *udpFlow) moved() {
	f.idle.touch()
	if f.sent.Load() > 1 && f.answered.Load() {
		f.stream.Do(func() { f.idle.setLimit(udpStream) })
	}
}

// answers moves datagrams to the guest.
func (f *udpFlow) answers(n *Network) error {
	buf := bigBuffers.Get().(*[bigBuffer]byte) // holds any datagram
	defer bigBuffers.Put(buf)
	for {
		size, err := f.upstream.Read(buf[:])
		if err != nil {
			return err
		}
		f.answered.Store(true)
		f.moved()
		n.sendUDP(f.udpKey.destination, f.port, buf[:size])
	}
}
