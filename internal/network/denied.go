package network

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// A range that no guest reaches, and why.
type deniedRange struct {
	prefix netip.Prefix
	reason string
}

// alwaysDenied holds the special-purpose ranges of RFC 6890 in which the host,
// its neighbours or its cloud's control plane live. IPv6 is not carried; its
// ranges are here so that carrying it would not open them.
var alwaysDenied = func() []deniedRange {
	var all []deniedRange
	for _, r := range []struct {
		reason   string
		prefixes []string
	}{
		{"an address of the host itself", []string{"0.0.0.0/8", "127.0.0.0/8", "::/128", "::1/128"}},
		{"a private network", []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"}},
		{"a carrier's private network", []string{"100.64.0.0/10"}},
		{"a link-local or metadata address", []string{"169.254.0.0/16", "fe80::/10"}},
		{"a cloud's control address", []string{"168.63.129.16/32"}},
		{"a reserved range", []string{"192.0.0.0/24", "198.18.0.0/15", "240.0.0.0/4", "100::/64", "2001::/23", "2001:db8::/32", "5f00::/16"}},
		{"a multicast address", []string{"224.0.0.0/4", "ff00::/8"}},
		// An IPv4 address can be wrapped in these, the denied ones too.
		{"an IPv4 address in disguise", []string{"::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16"}},
	} {
		for _, p := range r.prefixes {
			all = append(all, deniedRange{netip.MustParsePrefix(p), r.reason})
		}
	}
	return all
}()

// denied answers for one network whether an address is out of reach in every
// mode. It is safe for concurrent use.
type denied struct {
	exceptions []netip.Prefix
	host       hostAddresses
}

// reason says why a is always denied; "" means it is not.
func (d *denied) reason(a netip.Addr) string {
	if !a.IsValid() {
		return "not an address"
	}
	a = a.Unmap().WithZone("")
	if slices.ContainsFunc(d.exceptions, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return ""
	}
	for _, r := range alwaysDenied {
		if r.prefix.Contains(a) {
			return r.reason
		}
	}
	reason, err := d.host.reason(a)
	if err != nil {
		return "the host's own addresses are not known"
	}
	return reason
}

// overlaps says whether any address of p is always denied. An exception frees
// only what lies in it whole.
func (d *denied) overlaps(p netip.Prefix) bool {
	if slices.ContainsFunc(d.exceptions, func(e netip.Prefix) bool { return e.Bits() <= p.Bits() && e.Contains(p.Addr()) }) {
		return false
	}
	own, err := d.host.within(p)
	return own || err != nil || slices.ContainsFunc(alwaysDenied, func(r deniedRange) bool { return r.prefix.Overlaps(p) })
}

// hostAddressesAge is how long a list of the host's addresses is believed.
const hostAddressesAge = time.Second

// hostAddresses remembers the addresses of the host's interfaces: a service
// bound to all of them is otherwise reachable at the host's outer address. With
// them go the first and last address of the networks that they are in, by which
// a datagram reaches all neighbours at once, the host among them.
type hostAddresses struct {
	list func() ([]netip.Prefix, error)

	mu    sync.Mutex
	known map[netip.Addr]string // why; nil until list answered once
	asked time.Time
}

// reason says why a is the host's; "" means it is not. It fails only if the list
// could never be had. A later failure keeps the last list.
func (h *hostAddresses) reason(a netip.Addr) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.refresh()
	return h.known[a], err
}

// within says whether any is in p, and fails as reason does.
func (h *hostAddresses) within(p netip.Prefix) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.refresh()
	for a := range h.known {
		if p.Contains(a) {
			return true, err
		}
	}
	return false, err
}

func (h *hostAddresses) refresh() error {
	if h.known != nil && time.Since(h.asked) <= hostAddressesAge {
		return nil
	}
	list, err := h.list()
	if err != nil && h.known == nil {
		return err
	}
	h.asked = time.Now()
	if err != nil {
		return nil
	}
	h.known = map[netip.Addr]string{}
	for _, p := range list {
		if first, last, ok := broadcast(p); ok {
			h.known[first], h.known[last] = "a broadcast address of the host's network", "a broadcast address of the host's network"
		}
	}
	for _, p := range list {
		h.known[p.Addr().Unmap()] = "an address of this host"
	}
	return nil
}

// broadcast gives the addresses by which all of an interface's network are
// meant: its last, and its first, which once was. IPv6 has none, nor has a link
// of two.
func broadcast(p netip.Prefix) (first, last netip.Addr, ok bool) {
	if !p.Addr().Is4() || p.Bits() > 30 {
		return first, last, false
	}
	first = p.Masked().Addr()
	b := first.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])|^uint32(0)>>p.Bits())
	return first, netip.AddrFrom4(b), true
}

func interfaceAddresses() ([]netip.Prefix, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the host's addresses: %w", err)
	}
	var all []netip.Prefix
	for _, x := range list {
		n, ok := x.(*net.IPNet)
		if !ok {
			continue
		}
		a, ok := netip.AddrFromSlice(n.IP)
		if !ok {
			continue
		}
		a = a.Unmap()
		bits, size := n.Mask.Size()
		if size != a.BitLen() {
			bits = a.BitLen() // the address alone
		}
		all = append(all, netip.PrefixFrom(a, bits))
	}
	return all, nil
}
