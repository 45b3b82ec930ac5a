package network

import "sync/atomic"

// Stats are the counters of one network since New, and its present load.
type Stats struct {
	// Connected says whether the hypervisor's end of the link is there;
	// Connects counts how often it came.
	Connected bool
	Connects  uint64

	FramesIn, BytesIn   uint64 // from the guest
	FramesOut, BytesOut uint64 // to the guest
	// FramesLost were for the guest, but the hypervisor did not read in time or
	// was not there.
	FramesLost uint64
	Filtered   Filtered

	TCPFlows, UDPFlows int // open now
	TCPOpened          uint64
	UDPOpened          uint64
	DialsFailed        uint64 // refused, unreachable or too slow; not denied

	// DatagramsLost of the guest came faster than the host's sockets took them.
	DatagramsLost uint64

	Questions     uint64 // DNS questions of the guest
	QuestionsLost uint64 // dropped: too many at once, or not a question
	LookupsFailed uint64 // the host's resolver did not answer
	PinnedAddrs   int    // addresses whose names are remembered

	Denied Denied
}

// Filtered counts frames of the guest that the link dropped unread.
type Filtered struct {
	Malformed uint64 // cut short, with IP options, with a length that lies, or a crumb of a TCP segment
	Foreign   uint64 // for another hardware address, or neither IPv4, IPv6 nor ARP
	IPv6      uint64
	Spoofed   uint64 // from an address that is not the guest's
	Martian   uint64 // to the loopback, to nobody or to itself
	Multicast uint64
	Protocol  uint64 // ICMP to anyone but the gateway, and other protocols
}

// Denied counts denials by kind.
type Denied struct {
	Address   uint64 // destinations that are always denied
	Gateway   uint64 // ports of the gateway
	Policy    uint64 // flows that the policy denied
	Name      uint64 // names that the policy denied
	Rebinding uint64 // DNS answers that pointed into denied space
	Limit     uint64 // flows and connections to the resolver beyond the cap
}

// counters are the growing part of Stats.
type counters struct {
	connects                                         atomic.Uint64
	framesIn, bytesIn, framesOut, bytesOut           atomic.Uint64
	framesLost                                       atomic.Uint64
	filtered                                         [verdicts]atomic.Uint64
	tcpOpened, udpOpened, dialsFailed, datagramsLost atomic.Uint64
	questions, questionsLost, lookupsFailed          atomic.Uint64
	denied                                           [kinds]atomic.Uint64
}

// Stats never waits for the link or for a flow.
func (n *Network) Stats() Stats {
	c := &n.counters
	tcp, udp := n.flows.count()
	return Stats{
		Connected: n.link.connected(),
		Connects:  c.connects.Load(),
		FramesIn:  c.framesIn.Load(), BytesIn: c.bytesIn.Load(),
		FramesOut: c.framesOut.Load(), BytesOut: c.bytesOut.Load(),
		FramesLost: c.framesLost.Load(),
		Filtered: Filtered{
			Malformed: c.filtered[dropMalformed].Load(),
			Foreign:   c.filtered[dropForeign].Load(),
			IPv6:      c.filtered[dropIPv6].Load(),
			Spoofed:   c.filtered[dropSpoofed].Load(),
			Martian:   c.filtered[dropMartian].Load(),
			Multicast: c.filtered[dropMulticast].Load(),
			Protocol:  c.filtered[dropProtocol].Load(),
		},
		TCPFlows: tcp, UDPFlows: udp,
		TCPOpened:     c.tcpOpened.Load(),
		UDPOpened:     c.udpOpened.Load(),
		DialsFailed:   c.dialsFailed.Load(),
		DatagramsLost: c.datagramsLost.Load(),
		Questions:     c.questions.Load(),
		QuestionsLost: c.questionsLost.Load(),
		LookupsFailed: c.lookupsFailed.Load(),
		PinnedAddrs:   n.pins.count(),
		Denied: Denied{
			Address:   c.denied[deniedAddress].Load(),
			Gateway:   c.denied[deniedGateway].Load(),
			Policy:    c.denied[deniedPolicy].Load(),
			Name:      c.denied[deniedName].Load(),
			Rebinding: c.denied[deniedRebinding].Load(),
			Limit:     c.denied[deniedLimit].Load(),
		},
	}
}
