package network

import (
	"encoding/binary"
	"net/netip"
)

const arpBody = 28

// answerARP gives the answer to the ARP frame f, or nil. Only a question for
// the gateway is answered: everybody else is behind it, and the guest's own
// address is not taken.
func answerARP(f []byte) []byte {
	a := f[ethernetHeader:]
	if len(a) < arpBody {
		return nil
	}
	ethernetIPv4 := [6]byte{0, 1, 8, 0, 6, 4}
	if [6]byte(a[:6]) != ethernetIPv4 || binary.BigEndian.Uint16(a[6:]) != 1 || hardwareAddr(a[8:14]) != guestMAC ||
		netip.AddrFrom4([4]byte(a[24:28])) != GatewayAddress {
		return nil
	}
	r := make([]byte, 0, ethernetHeader+arpBody)
	r = appendEthernet(r, typeARP)
	r = append(r, ethernetIPv4[:]...)
	r = append(r, 0, 2)
	r = append(r, gatewayMAC[:]...)
	r = append(r, a[24:28]...)
	return append(r, a[8:18]...)
}
