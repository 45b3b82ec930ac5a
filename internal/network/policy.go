package network

import "net/netip"

// Policy decides what a guest may reach. It is asked once per flow before the
// flow's destination is dialled, and once per name before the name is looked
// up; what is always denied was denied before and cannot be allowed here.
//
// Methods are called concurrently, on the path of every packet that opens a
// flow: they must not block.
type Policy interface {
	// Flow judges a new TCP connection or the first datagram to a destination.
	Flow(Flow) Decision
	// Name judges a name that the guest asks the resolver for: lower case, no
	// trailing dot, no service labels (_https._tcp.) in front, and '?' for each
	// character that no host name has. The name that is looked up is the guest's.
	Name(name string) Decision
}

// Flow is what a policy knows of a flow.
type Flow struct {
	Protocol    Protocol
	Destination netip.AddrPort
	// Names are those whose DNS answers named the address, the latest first;
	// empty if the guest was never given the address. One address may serve
	// names that are not among them.
	Names []string
}

// Protocol is a transport protocol: TCP or UDP.
type Protocol string

// The protocols that flows have.
const (
	TCP Protocol = "tcp"
	UDP Protocol = "udp"
)

// Decision is a policy's answer. The zero value denies.
type Decision struct {
	Allow bool
	// Reason says in a few words why not, for logs and listings.
	Reason string
}

// Allowed is the decision that lets a flow or name pass.
var Allowed = Decision{Allow: true}

// Open lets everything pass that is not always denied.
type Open struct{}

// Flow implements Policy.
func (Open) Flow(Flow) Decision { return Allowed }

// Name implements Policy.
func (Open) Name(string) Decision { return Allowed }
