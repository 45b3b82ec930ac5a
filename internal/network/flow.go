package network

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
)

const (
	// maxTCPFlows and maxUDPFlows cap what one guest may have open. Each costs
	// the host a socket and a buffer of the relay: two of smallBuffer for TCP,
	// one that holds any datagram for UDP.
	maxTCPFlows = 2048
	maxUDPFlows = 512
	// maxDials is how many TCP connections may be between the guest's first
	// segment and the end of the handshake: enough that a few destinations that
	// never answer hold up nobody.
	maxDials = 512

	// bufferBudget bounds, per direction, the stack's buffers of all flows but
	// for bufferLeast each: a guest that opens many connections and reads none
	// of them gets ever smaller ones.
	bufferBudget = 32 << 20
	bufferLeast  = 32 << 10
)

// flow is one connection of the guest, or one pair of UDP endpoints.
type flow struct {
	protocol    Protocol
	destination netip.AddrPort
	buffer      int                // bytes of the stack's buffer, each way
	cut         context.CancelFunc // ends it with a reset
}

// flows are the open flows of one network.
type flows struct {
	mu       sync.Mutex
	open     map[*flow]struct{}
	tcp, udp int
	budget   int // what is left of bufferBudget

	maxTCP, maxUDP int
}

func newFlows() flows {
	return flows{open: map[*flow]struct{}{}, budget: bufferBudget, maxTCP: maxTCPFlows, maxUDP: maxUDPFlows}
}

// add enters a flow, unless there are too many of its protocol.
func (fs *flows) add(f *flow) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.protocol == TCP {
		if fs.tcp >= fs.maxTCP {
			return false
		}
		fs.tcp++
		f.buffer = max(bufferLeast, min(bufferMax, fs.budget/32))
		fs.budget -= f.buffer
	} else {
		if fs.udp >= fs.maxUDP {
			return false
		}
		fs.udp++
	}
	fs.open[f] = struct{}{}
	return true
}

// remove takes a flow out that was added.
func (fs *flows) remove(f *flow) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.open, f)
	if f.protocol == TCP {
		fs.tcp--
		fs.budget += f.buffer
	} else {
		fs.udp--
	}
}

func (fs *flows) list() []*flow {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return slices.Collect(maps.Keys(fs.open))
}

func (fs *flows) count() (tcp, udp int) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.tcp, fs.udp
}
