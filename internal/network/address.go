package network

import (
	"net"
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// The fixed addressing of every VM's network. Two VMs never share a link, so
// all of them use the same. It is part of a memory image: a template made with
// other values has to be made again.
const (
	// GuestMAC is the hardware address the guest's interface must have; frames
	// from any other are dropped.
	GuestMAC = "52:54:00:5f:0b:01"
	// GatewayMAC is the hardware address that ARP answers name.
	GatewayMAC = "52:54:00:5f:0b:fe"
	// DefaultMTU is the guest's MTU. Large packets double the speed towards the
	// guest; a guest is told by virtio (host_mtu) and by DHCP.
	DefaultMTU = 65520

	minMTU = 576
	maxMTU = 65520
)

// The guest's address, its gateway (which is also its DNS and DHCP server) and
// the prefix of the link they share.
var (
	GuestAddress   = netip.AddrFrom4([4]byte{192, 168, 127, 2})
	GatewayAddress = netip.AddrFrom4([4]byte{192, 168, 127, 1})
	Prefix         = netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, 127, 0}), 24)
)

type hardwareAddr [6]byte

var (
	guestMAC     = mustMAC(GuestMAC)
	gatewayMAC   = mustMAC(GatewayMAC)
	broadcastMAC = hardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	broadcastIP  = netip.AddrFrom4([4]byte{255, 255, 255, 255})
)

func mustMAC(s string) (a hardwareAddr) {
	m, err := net.ParseMAC(s)
	if err != nil || len(m) != len(a) {
		panic("network: bad hardware address " + s)
	}
	copy(a[:], m)
	return a
}

func stackAddress(a netip.Addr) tcpip.Address { return tcpip.AddrFrom4(a.As4()) }

// hostAddress gives the invalid address for anything that is not IPv4.
func hostAddress(a tcpip.Address) netip.Addr {
	addr, _ := netip.AddrFromSlice(a.AsSlice())
	return addr.Unmap()
}
