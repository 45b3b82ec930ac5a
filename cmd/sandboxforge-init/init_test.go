package main

import (
	"reflect"
	"testing"
)

func TestParseCmdline(t *testing.T) {
	for line, want := range map[string]options{
		"":                             {root: "/dev/vda", init: []string{"/sbin/init"}},
		"quiet root= sandboxforge.net": {root: "/dev/vda", init: []string{"/sbin/init"}},
		"root=/dev/vdb root=/dev/vdc rootflags=noatime,noinit_itable sandboxforge.init=/a,init sandboxforge.net=10.0.2.15/24,10.0.2.2 sandboxforge.hostname=x\n": {
			root: "/dev/vdc", rootFlags: "noatime,noinit_itable", init: []string{"/a", "init"}, net: "10.0.2.15/24,10.0.2.2", hostname: "x"},
	} {
		if got := parseCmdline(line); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %+v, want %+v", line, got, want)
		}
	}
}

func TestParseNetwork(t *testing.T) {
	for _, c := range []struct {
		in, device, address, gateway string
		ok                           bool
	}{
		{"10.0.2.15/24,10.0.2.2", "eth0", "10.0.2.15/24", "10.0.2.2", true},
		{"192.168.7.2/30", "eth0", "192.168.7.2/30", "invalid IP", true},
		{"10.0.2.15/24,,net1", "net1", "10.0.2.15/24", "invalid IP", true},
		{"10.0.2.15,10.0.2.2", "", "", "", false},
		{"10.0.2.15/24,gateway", "", "", "", false},
		{"fd00::2/64,fd00::1", "", "", "", false},
		{"10.0.2.15/24,fd00::1", "", "", "", false},
		{"10.0.2.15/24,10.0.2.2,a-name-that-is-too-long", "", "", "", false},
		{"10.0.2.15/24,10.0.2.2,eth0,more", "", "", "", false},
		{"", "", "", "", false},
	} {
		n, err := parseNetwork(c.in)
		if (err == nil) != c.ok {
			t.Errorf("%q: error %v", c.in, err)
		}
		if c.ok && (n.device != c.device || n.address.String() != c.address || n.gateway.String() != c.gateway) {
			t.Errorf("%q: got %+v", c.in, n)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("root=/dev/vda sandboxforge.net=10.0.2.15/24,10.0.2.2")
	f.Add("sandboxforge.init=,,")
	f.Fuzz(func(t *testing.T, line string) {
		o := parseCmdline(line)
		if o.root == "" || len(o.init) == 0 {
			t.Fatalf("%q leaves nothing to boot: %+v", line, o)
		}
		if n, err := parseNetwork(o.net); err == nil && (!n.address.Addr().Is4() || n.device == "") {
			t.Fatalf("%q: accepted %+v", line, n)
		}
	})
}
