package network

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// only lets one name and one port pass.
type only struct {
	name string
	port uint16
}

func (p only) Flow(f Flow) Decision {
	if f.Destination.Port() == p.port && slices.Contains(f.Names, p.name) {
		return Allowed
	}
	return Decision{Reason: "not on the list"}
}

func (p only) Name(n string) Decision {
	return Decision{Allow: n == p.name, Reason: "not on the list"}
}

// TestPolicy: a policy is asked for each name and each flow, with the names
// that the flow's address was handed out for.
func TestPolicy(t *testing.T) {
	z := &zone{records: map[string][]dnsmessage.ResourceBody{
		"good.test.": {a("198.51.100.7"), a("10.0.0.1")}, "_http._tcp.good.test.": nil, "bad.test.": {a("198.51.100.8")},
	}}
	r := newRoom(t, Config{Resolver: z, Policy: only{"good.test", 443}})
	r.world.serve(t, "198.51.100.7:443", echo)
	if _, err := r.guest.dial(testContext(t), "198.51.100.7:443"); err == nil {
		t.Error("an address that was not handed out passed")
	}
	if got := addresses(r.lookUp(t, "udp", "good.test.", dnsmessage.TypeA, 0)); len(got) != 1 {
		t.Errorf("good.test is %v", got)
	}
	if m := r.lookUp(t, "udp", "_http._tcp.good.test.", dnsmessage.TypeSRV, 0); m.RCode != 0 {
		t.Errorf("its services: %v", m.RCode)
	}
	for _, n := range []string{"bad.test.", "good.test.bad.test.", "xgood.test."} {
		for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypeTXT} {
			if m := r.lookUp(t, "udp", n, typ, 0); m.RCode != dnsmessage.RCodeNameError {
				t.Errorf("%s: %v", n, m.RCode)
			}
		}
	}
	if err := roundTrip(r.guest.mustDial("198.51.100.7:443"), "allowed"); err != nil {
		t.Error(err)
	}
	if _, err := r.guest.dial(testContext(t), "198.51.100.7:80"); err == nil {
		t.Error("another port passed")
	}
	if got, err := ask(r.guest.dialUDP("198.51.100.7:53"), "x"); err == nil {
		t.Errorf("a datagram passed: %q", got)
	}
	if q := z.questions(); !slices.Equal(q, []string{"good.test. A", "_http._tcp.good.test. SRV"}) {
		t.Errorf("the host's resolver was asked %q", q)
	}
	if s := r.Stats().Denied; s.Policy != 3 || s.Name != 9 {
		t.Errorf("denied %+v", s)
	}
	d := r.Denials()
	if last := d[len(d)-1]; !slices.Equal(last.Names, []string{"good.test"}) || last.Reason != "not on the list" || last.Destination.String() != "198.51.100.7:53" {
		t.Errorf("the last denial is %+v", last)
	}
}

// TestSetPolicy: a flow that no longer passes is ended, the others live, and new
// ones meet the new policy.
func TestSetPolicy(t *testing.T) {
	r := newRoom(t, Config{})
	r.world.serve(t, "198.51.100.7:443", echo)
	r.world.serve(t, "198.51.100.7:80", echo)
	r.world.serveUDP(t, "198.51.100.7:53")
	r.pins.add(netip.MustParseAddr("198.51.100.7"), "good.test")
	kept, lost := r.guest.mustDial("198.51.100.7:443"), r.guest.mustDial("198.51.100.7:80")
	for _, c := range []net.Conn{kept, lost} {
		if err := roundTrip(c, "before"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ask(r.guest.dialUDP("198.51.100.7:53"), "x"); err != nil {
		t.Fatal(err)
	}
	if cut := r.SetPolicy(only{"good.test", 443}); cut != 2 {
		t.Errorf("%d flows were cut", cut)
	}
	if _, err := lost.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the flow that was cut: %v", err)
	}
	if err := roundTrip(kept, "after"); err != nil {
		t.Error(err)
	}
	if _, err := r.guest.dial(testContext(t), "198.51.100.7:80"); err == nil {
		t.Error("a new flow passed")
	}
	if cut := r.SetPolicy(nil); cut != 0 {
		t.Errorf("an open policy cut %d flows", cut)
	}
	if err := roundTrip(r.guest.mustDial("198.51.100.7:80"), "open again"); err != nil {
		t.Error(err)
	}
}
