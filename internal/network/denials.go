package network

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Denial is something the guest wanted and did not get.
type Denial struct {
	// Protocol is empty for what is neither TCP, UDP, "icmp" nor "dns".
	Protocol Protocol
	// Destination's port is 0 where there is none; for a name that was denied
	// the whole is invalid.
	Destination netip.AddrPort
	// Names that the address was handed out for, the latest first, or the name
	// that was denied.
	Names  []string
	Reason string
	// Count of the same within a minute of each other, from First to Last.
	Count       int
	First, Last time.Time
}

const (
	denialsKept = 128
	denialSame  = time.Minute // the same denial within that is counted, not listed and logged anew
	logBurst    = 20          // log lines at once
	logInterval = time.Second // one more line each
)

// denials keeps the latest denials and logs them at a bounded rate: what a
// guest does in a loop fills neither a log nor memory.
type denials struct {
	log *slog.Logger

	mu         sync.Mutex
	ring       []Denial
	next       int // the oldest, once the ring is full
	spent      int // lines of the burst that are used up
	refilled   time.Time
	suppressed int
}

// note takes a denial whose Count and times are not set yet.
func (d *denials) note(x Denial) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for i := range d.ring {
		r := &d.ring[i]
		if r.Destination == x.Destination && r.Protocol == x.Protocol && r.Reason == x.Reason &&
			slices.Equal(r.Names, x.Names) && now.Sub(r.Last) < denialSame {
			r.Last = now
			r.Count++
			return
		}
	}
	x.Count, x.First, x.Last = 1, now, now
	if len(d.ring) < denialsKept {
		d.ring = append(d.ring, x)
	} else {
		d.ring[d.next] = x
		d.next = (d.next + 1) % denialsKept
	}
	d.write(x, now)
}

func (d *denials) write(x Denial, now time.Time) {
	if back := int(now.Sub(d.refilled) / logInterval); back > 0 {
		d.spent = max(0, d.spent-back)
		d.refilled = now
	}
	if d.spent >= logBurst {
		d.suppressed++
		return
	}
	d.spent++
	args := []any{"reason", x.Reason}
	if x.Protocol != "" {
		args = append(args, "protocol", string(x.Protocol))
	}
	switch {
	case x.Destination.Port() != 0:
		args = append(args, "destination", x.Destination.String())
	case x.Destination.Addr().IsValid():
		args = append(args, "destination", x.Destination.Addr().String())
	}
	if len(x.Names) > 0 {
		args = append(args, "names", x.Names)
	}
	if d.suppressed > 0 {
		args = append(args, "not_logged", d.suppressed)
		d.suppressed = 0
	}
	d.log.Info("network denied", args...)
}

// list gives a copy, the oldest first.
func (d *denials) list() []Denial {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Concat(d.ring[d.next:], d.ring[:d.next])
}

// Denials lists the latest denials, the oldest first, at most 128. Names and
// destinations are the guest's choice: treat them as hostile text.
func (n *Network) Denials() []Denial { return n.denials.list() }
