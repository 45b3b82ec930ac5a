package network

import "net/netip"

// kind is why something was denied.
type kind int

const (
	deniedAddress kind = iota
	deniedGateway
	deniedPolicy
	deniedName
	deniedRebinding
	deniedLimit
	deniedFrame // dropped by the link's filter
	kinds       // how many there are
)

// open judges a flow and enters it. What it says no to has been counted and
// logged.
func (n *Network) open(f *flow) bool {
	// A flow that is not entered before it is judged could miss a change of
	// policy.
	if !n.flows.add(f) {
		n.deny(deniedLimit, f.protocol, f.destination, nil, "too many open flows")
		return false
	}
	if n.judge(f) {
		return true
	}
	n.flows.remove(f)
	return false
}

func (n *Network) judge(f *flow) bool {
	address := f.destination.Addr()
	if address == GatewayAddress {
		n.deny(deniedGateway, f.protocol, f.destination, nil, "the gateway has no such service")
		return false
	}
	if reason := n.denied.reason(address); reason != "" {
		n.deny(deniedAddress, f.protocol, f.destination, n.pins.names(address), reason)
		return false
	}
	if f.destination.Port() == 0 {
		n.deny(deniedAddress, f.protocol, f.destination, nil, "not a port")
		return false
	}
	names := n.pins.names(address)
	d := n.policy().Flow(Flow{Protocol: f.protocol, Destination: f.destination, Names: names})
	if !d.Allow {
		n.deny(deniedPolicy, f.protocol, f.destination, names, d.Reason)
	}
	return d.Allow
}

// policy is the present one.
func (n *Network) policy() Policy { return *n.rules.Load() }

// SetPolicy puts p in the place of the present policy; nil is Open. Flows that
// are open are judged anew, those that no longer pass are ended with a reset,
// and their number is returned. What the stack had already taken for the guest
// may still arrive, at most a megabyte of each flow.
func (n *Network) SetPolicy(p Policy) (cut int) {
	if p == nil {
		p = Open{}
	}
	n.rules.Store(&p)
	for _, f := range n.flows.list() {
		if !n.judge(f) {
			f.cut()
			cut++
		}
	}
	return cut
}

// deny counts a denial and notes it for the log and for Denials.
func (n *Network) deny(k kind, p Protocol, to netip.AddrPort, names []string, reason string) {
	n.counters.denied[k].Add(1)
	n.denials.note(Denial{Protocol: p, Destination: to, Names: names, Reason: reason})
}

// filtered notes frames that the link dropped and that a user may miss: the
// rest is the noise of any booting system.
func (n *Network) filtered(v verdict, p packet) {
	var reason string
	switch v {
	case dropSpoofed:
		reason = "the source is not the guest's address"
	case dropMartian:
		reason = "the destination is nobody's address"
	case dropProtocol:
		reason = "only TCP, UDP and pings to the gateway are carried"
	default:
		return
	}
	protocol := Protocol("")
	switch p.protocol {
	case protoICMP:
		protocol = "icmp"
	case protoTCP:
		protocol = TCP
	case protoUDP:
		protocol = UDP
	}
	n.deny(deniedFrame, protocol, netip.AddrPortFrom(p.dst, 0), nil, reason)
}
