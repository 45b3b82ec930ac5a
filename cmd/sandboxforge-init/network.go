package main

import (
	"fmt"
	"net/netip"
	"strings"
)

// network is a static address for one interface.
type network struct {
	device  string
	address netip.Prefix
	gateway netip.Addr // invalid means none
}

// parseNetwork reads ADDR/BITS,GATEWAY[,DEVICE]; the device is eth0 unless
// named. Only IPv4 is configured here.
func parseNetwork(s string) (network, error) {
	n := network{device: "eth0"}
	parts := strings.Split(s, ",")
	if len(parts) < 1 || len(parts) > 3 {
		return n, fmt.Errorf("sandboxforge.net=%q: want ADDR/BITS,GATEWAY[,DEVICE]", s)
	}
	var err error
	if n.address, err = netip.ParsePrefix(parts[0]); err != nil {
		return n, fmt.Errorf("sandboxforge.net=%q: %w", s, err)
	}
	if !n.address.Addr().Is4() {
		return n, fmt.Errorf("sandboxforge.net=%q: only IPv4 is supported", s)
	}
	if len(parts) > 1 && parts[1] != "" {
		if n.gateway, err = netip.ParseAddr(parts[1]); err != nil {
			return n, fmt.Errorf("sandboxforge.net=%q: %w", s, err)
		}
		if !n.gateway.Is4() {
			return n, fmt.Errorf("sandboxforge.net=%q: only IPv4 is supported", s)
		}
	}
	if len(parts) > 2 {
		n.device = parts[2]
	}
	if n.device == "" || len(n.device) > 15 {
		return n, fmt.Errorf("sandboxforge.net=%q: bad device name", s)
	}
	return n, nil
}
