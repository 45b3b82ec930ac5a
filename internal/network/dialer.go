package network

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// errOwnAddress: the connection that was made ends at this host.
var errOwnAddress = errors.New("the destination is this host")

// hostDialer makes connections with the host's sockets.
type hostDialer struct{}

// DialContext implements Dialer. A destination that the list of interface
// addresses did not show (it came up a moment ago, or is a local route) still
// betrays itself: the system then gives both ends the same address.
func (hostDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepaliveIdle, Interval: time.Minute, Count: 5}}
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	local, err1 := netip.ParseAddrPort(c.LocalAddr().String())
	remote, err2 := netip.ParseAddrPort(c.RemoteAddr().String())
	if err1 != nil || err2 != nil || local.Addr().Unmap() == remote.Addr().Unmap() {
		c.Close()
		return nil, errOwnAddress
	}
	return c, nil
}
