package network

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
)

// TestDenialsAreBounded: what a guest does in a loop is counted, not kept and
// not logged line by line.
func TestDenialsAreBounded(t *testing.T) {
	var out bytes.Buffer
	d := denials{log: slog.New(slog.NewTextHandler(&out, nil))}
	to := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80)
	}
	for range 1000 {
		d.note(Denial{Protocol: TCP, Destination: to(0), Names: []string{"a.test\n"}, Reason: "a reason"})
	}
	if got := d.list(); len(got) != 1 || got[0].Count != 1000 || got[0].Last.Before(got[0].First) {
		t.Errorf("the same denial a thousand times is %+v", got)
	}
	if n := strings.Count(out.String(), "\n"); n != 1 || !strings.Contains(out.String(), `destination=10.0.0.0:80 names="[a.test\n]"`) {
		t.Errorf("%d lines: %s", n, &out)
	}
	for i := range 1000 {
		d.note(Denial{Protocol: TCP, Destination: to(i), Reason: "a reason"})
	}
	got := d.list()
	if len(got) != denialsKept || got[0].Destination != to(1000-denialsKept) || got[denialsKept-1].Destination != to(999) {
		t.Errorf("%d are kept, from %v", len(got), got[0].Destination)
	}
	if n := strings.Count(out.String(), "\n"); n > logBurst+5 {
		t.Errorf("%d lines", n)
	}
	d.refilled = d.refilled.Add(-2 * logInterval)
	d.note(Denial{Reason: "another"})
	if !strings.Contains(out.String(), "not_logged=") {
		t.Error("nobody says how much was not logged")
	}
}

func TestPinsAreBounded(t *testing.T) {
	var p pins
	for i := range 2 * pinnedAddresses {
		p.add(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), "a.test")
		p.add(netip.MustParseAddr("203.0.113.1"), "kept.test") // asked for all the time
	}
	a := netip.MustParseAddr("203.0.113.1")
	for _, n := range []string{"1", "2", "3", "kept.test", "4"} {
		p.add(a, n)
	}
	if p.count() != pinnedAddresses {
		t.Errorf("%d addresses are remembered", p.count())
	}
	if got := strings.Join(p.names(a), " "); got != "4 kept.test 3 2" {
		t.Errorf("names %q", got)
	}
	if p.names(netip.MustParseAddr("8.8.8.8")) != nil {
		t.Error("an address that was never handed out has a name")
	}
}
