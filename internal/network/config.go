package network

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"
)

// Config of one VM's network. The zero value is an open network of DefaultMTU
// over the host's own resolver and sockets.
type Config struct {
	// MTU of the guest's interface in bytes, 576 to 65520; 0 is DefaultMTU. It
	// must equal the host_mtu of the virtual device.
	MTU int
	// Policy is asked before each flow and each name; nil is Open.
	Policy Policy
	// Resolver answers the guest's DNS questions; nil is the host's own.
	Resolver Resolver
	// Dialer makes the connections to the world; nil is the host's sockets,
	// which refuse a connection that turns out to end at this host.
	Dialer Dialer
	// DialTimeout bounds a dial; 0 is 20 seconds.
	DialTimeout time.Duration
	// Interfaces gives the addresses of the host's own interfaces, each with the
	// length of its network's prefix. They are always denied, and so are the
	// broadcast addresses of those networks. It is asked again when its answer is
	// older than a second; while it has never answered, everything is denied. nil
	// asks the host.
	Interfaces func() ([]netip.Prefix, error)
	// Exceptions are the operator's: destinations in them are not always denied.
	// The host itself is none for all that: the link drops what is for a loopback
	// address, and the host's sockets refuse a connection that ends at this host.
	Exceptions []netip.Prefix
	// Log gets denials, at a bounded rate; nil discards.
	Log *slog.Logger
}

// Dialer makes one connection. Network is "tcp" or "udp", address a literal
// address and port. It must honour ctx. A TCP connection that has CloseWrite
// can be half-closed, one that has SetLinger can be reset.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// withDefaults checks c and fills what was left out.
func (c Config) withDefaults() (Config, error) {
	if c.MTU == 0 {
		c.MTU = DefaultMTU
	}
	if c.MTU < minMTU || c.MTU > maxMTU {
		return c, fmt.Errorf("network: MTU %d is not within %d and %d", c.MTU, minMTU, maxMTU)
	}
	for _, p := range c.Exceptions {
		if !p.IsValid() {
			return c, fmt.Errorf("network: an exception is not a valid prefix")
		}
	}
	if c.Policy == nil {
		c.Policy = Open{}
	}
	if c.Resolver == nil {
		c.Resolver = &hostResolver{path: resolvConf}
	}
	if c.Dialer == nil {
		c.Dialer = hostDialer{}
	}
	if c.DialTimeout <= 0 {
		c.DialTimeout = 20 * time.Second
	}
	if c.Interfaces == nil {
		c.Interfaces = interfaceAddresses
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
