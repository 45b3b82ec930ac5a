// Package network is one VM's own user-mode network: an Ethernet link to the
// hypervisor on one side, ordinary sockets of the host on the other, and a
// judgement between the two.
//
// A hypervisor's built-in user network lets the guest reach every service on
// the host's loopback and in its LAN. Here a TCP/IP stack in user space ends
// the guest's connections, and each flow is judged before anything is dialled:
//
//	guest ── frames ──► link ──► filter ──► stack ──► judge ──► dialer ──► world
//	                              │                    │
//	                              ├─ ARP, DHCP         ├─ always denied: loopback, private and
//	                              │  for one guest     │  reserved ranges, the host's own addresses
//	                              └─ drops IPv6,       └─ Policy: one place for egress rules
//	                                 spoofed sources,
//	                                 multicast
//
// The guest has one fixed address, MAC and endless DHCP lease, so a clone of a
// memory image has its network without asking for it. The gateway is its only
// neighbour and its resolver; nothing else of the host has a port there.
//
//	n, err := network.New(network.Config{MTU: network.DefaultMTU, Log: log})
//	go n.Serve(ctx, func(ctx context.Context) (net.Conn, error) {
//		return (&net.Dialer{}).DialContext(ctx, "unix", socket) // QEMU: -netdev stream,server=on
//	})
//	c, err := n.DialGuest(ctx, 8080) // host → guest
//	defer n.Close()
//
// What the guest may rely on: a connection that is denied or refused is reset
// at once (upstream is dialled before the guest's handshake is answered), a
// denied datagram gets port unreachable, a half-closed connection goes on in
// the other direction, and a restart of the link loses frames but no flow.
//
// What the host may rely on: the address that is dialled is the address that
// was judged, never a name that is looked up again. Everything a guest can make
// grow has a bound: flows, dials in flight, buffers of all flows together (the
// stack's and the relay's), connections to the resolver, frames that wait for a
// hypervisor that does not read, names remembered.
//
// The package knows nothing of leases, MCP, Docker, QEMU's command line or the
// guest agent's protocol. It carries IPv4 only; IPv6 frames are counted and
// dropped.
package network
