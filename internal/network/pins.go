package network

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	pinnedAddresses = 1024
	pinnedNames     = 4 // per address
)

// pins remember which names an address was handed out for, so that a denial can
// say more than a number and a policy can ask for the name. What was seen
// longest ago makes room.
type pins struct {
	mu    sync.Mutex
	known map[netip.Addr]*pin
}

type pin struct {
	names []string // the latest first
	seen  time.Time
}

func (p *pins) add(a netip.Addr, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.known[a]
	if x == nil {
		if p.known == nil {
			p.known = map[netip.Addr]*pin{}
		}
		if len(p.known) >= pinnedAddresses {
			p.evict()
		}
		x = &pin{}
		p.known[a] = x
	}
	x.seen = time.Now()
	if i := slices.Index(x.names, name); i >= 0 {
		x.names = slices.Delete(x.names, i, i+1)
	}
	// A new slice: names has given the old one away.
	x.names = append([]string{name}, x.names[:min(len(x.names), pinnedNames-1)]...)
}

func (p *pins) evict() {
	var oldest netip.Addr
	for a, x := range p.known {
		if !oldest.IsValid() || x.seen.Before(p.known[oldest].seen) {
			oldest = a
		}
	}
	delete(p.known, oldest)
}

// names must not be changed by the caller.
func (p *pins) names(a netip.Addr) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x := p.known[a]; x != nil {
		return x.names
	}
	return nil
}

func (p *pins) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.known)
}
