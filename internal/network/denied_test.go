package network

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestAlwaysDenied(t *testing.T) {
	d := denied{
		exceptions: []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16"), netip.MustParsePrefix("203.0.113.9/32")},
		host: hostAddresses{list: func() ([]netip.Prefix, error) {
			return []netip.Prefix{netip.MustParsePrefix("203.0.113.77/26"), netip.MustParsePrefix("203.0.113.9/32"),
				netip.PrefixFrom(netip.MustParseAddr("::ffff:203.0.113.78"), 128), netip.MustParsePrefix("2600::1/64"),
				netip.MustParsePrefix("203.0.114.0/31"), netip.MustParsePrefix("203.0.115.2/30"), netip.MustParsePrefix("203.0.115.7/30")}, nil
		}},
	}
	for address, want := range map[string]string{
		"8.8.8.8": "", "198.51.100.7": "", "203.0.113.1": "", "11.0.0.0": "", "9.255.255.255": "", "100.63.255.255": "",
		"100.128.0.0": "", "172.15.0.1": "", "172.32.0.1": "", "192.0.1.1": "", "192.167.0.1": "", "198.17.0.1": "", "198.20.0.1": "",
		"223.255.255.255": "", "168.63.129.15": "", "2600::3": "", "2606:4700::1": "",
		"10.20.1.1": "", "203.0.113.9": "", // exceptions
		"203.0.113.65": "", "203.0.113.63": "", "203.0.113.128": "", "203.0.114.1": "", "203.0.115.1": "", "2600::ffff:ffff:ffff:ffff": "",
		"203.0.113.64": "broadcast", "203.0.113.127": "broadcast", "203.0.115.0": "broadcast", "203.0.115.3": "broadcast",
		"203.0.115.4": "broadcast", "203.0.115.7": "this host", "203.0.114.0": "this host",
		"0.0.0.0": "host itself", "0.1.2.3": "host itself", "127.0.0.1": "host itself", "127.255.255.254": "host itself",
		"10.0.0.1": "private", "10.0.2.2": "private", "10.21.0.1": "private", "172.16.0.1": "private", "172.31.255.255": "private",
		"192.168.0.1": "private", "192.168.127.3": "private", "100.64.0.1": "private", "100.127.255.255": "private",
		"169.254.169.254": "metadata", "168.63.129.16": "cloud", "192.0.0.8": "reserved", "198.18.0.1": "reserved",
		"198.19.255.255": "reserved", "240.0.0.1": "reserved", "255.255.255.255": "reserved", "224.0.0.1": "multicast",
		"239.255.255.250": "multicast", "203.0.113.77": "this host", "203.0.113.78": "this host",
		"::": "host itself", "::1": "host itself", "fd00::1": "private", "fe80::1": "link-local", "fe80::1%eth0": "link-local",
		"ff02::1": "multicast", "::ffff:127.0.0.1": "host itself", "::ffff:10.0.0.1": "private", "::7f00:1": "disguise",
		"64:ff9b::7f00:1": "disguise", "2002:7f00:1::": "disguise", "2001:0:1::": "reserved", "2600::1": "this host", "2600::1%eth0": "this host",
	} {
		if got := d.reason(netip.MustParseAddr(address)); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
	if d.reason(netip.Addr{}) == "" {
		t.Error("no address at all is let through")
	}
}

// TestHostAddresses: an address that comes up is denied, a list that fails
// leaves the last, and one that never came leaves nothing open.
func TestHostAddresses(t *testing.T) {
	var list []netip.Prefix
	failure := errors.New("not now")
	d := denied{host: hostAddresses{list: func() ([]netip.Prefix, error) { return list, failure }}}
	a := netip.MustParseAddr("203.0.113.77")
	if d.reason(a) == "" {
		t.Error("without a list an address is open")
	}
	failure = nil
	if r := d.reason(a); r != "" {
		t.Errorf("an address of nobody: %s", r)
	}
	list = []netip.Prefix{netip.PrefixFrom(a, 32)}
	d.host.asked = d.host.asked.Add(-2 * hostAddressesAge)
	if d.reason(a) == "" {
		t.Error("an address that came up is open")
	}
	failure = errors.New("not now")
	d.host.asked = d.host.asked.Add(-2 * hostAddressesAge)
	if d.reason(a) == "" {
		t.Error("a failure opened the host's address")
	}
}

// TestInterfaceAddresses: this machine's addresses come with their networks.
func TestInterfaceAddresses(t *testing.T) {
	list, err := interfaceAddresses()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if a := p.Addr(); a.IsLoopback() && a.Is4() && p.Bits() < 32 {
			return
		}
	}
	t.Errorf("no loopback network among %v", list)
}

// TestHostDialer: a connection that ends at this host is refused even if the
// list of addresses did not know.
func TestHostDialer(t *testing.T) {
	w := &world{}
	w.serve(t, public, echo)
	for _, network := range []string{"tcp", "udp"} {
		if _, err := (hostDialer{}).DialContext(testContext(t), network, w.hosts["tcp "+public]); !errors.Is(err, errOwnAddress) {
			t.Errorf("%s to this host: %v", network, err)
		}
	}
}

// TestDeniedFromGuest asks as a guest does, for what the table says.
func TestDeniedFromGuest(t *testing.T) {
	r := newRoom(t, Config{Exceptions: []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16")}})
	r.world.serve(t, "10.20.0.5:80", echo)
	for _, to := range []string{"10.0.2.2:22", "192.168.127.1:22", "192.168.1.1:80", "172.17.0.1:2375",
		"169.254.169.254:80", "100.100.100.200:80", "168.63.129.16:80", "203.0.113.77:22", "203.0.113.79:80", "10.21.0.1:80", "240.0.0.1:80"} {
		if _, err := r.guest.dial(testContext(t), to); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v", to, err)
		}
	}
	if got := r.world.dialled(); len(got) != 0 {
		t.Errorf("dialled %q", got)
	}
	if err := roundTrip(r.guest.mustDial("10.20.0.5:80"), "an exception"); err != nil {
		t.Error(err)
	}
	if s := r.Stats().Denied; s.Address != 10 || s.Gateway != 1 {
		t.Errorf("denied %+v", s)
	}
}

// TestHostLoopbackFrames: frames that no guest's kernel would send, to addresses
// that mean the host itself.
func TestHostLoopbackFrames(t *testing.T) {
	r := newRoom(t, Config{})
	for _, to := range []string{"127.0.0.1", "127.1.2.3", "0.0.0.0", "192.168.127.2", "192.168.127.255"} {
		syn := make([]byte, 20)
		syn[0], syn[1], syn[3], syn[12], syn[13] = 0x9c, 0x40, 22, 0x50, 2
		f := r.guest.answerTo(frameOf(protoTCP, to, syn))
		if f != nil && (f[23] != protoTCP || f[47]&4 == 0) {
			t.Errorf("%s: answered with %x, not a reset", to, f)
		}
	}
	if got := r.world.dialled(); len(got) != 0 {
		t.Errorf("dialled %q", got)
	}
}
