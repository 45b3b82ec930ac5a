package network

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// zone is a resolver with a few names. It answers with everything it has for a
// name, whatever the type.
type zone struct {
	records map[string][]dnsmessage.ResourceBody
	rcode   map[string]dnsmessage.RCode
	mangle  func([]byte) []byte
	block   chan struct{} // Exchange waits for it

	mu    sync.Mutex
	asked []string
}

func (z *zone) Exchange(ctx context.Context, query []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	q := m.Questions[0]
	z.mu.Lock()
	z.asked = append(z.asked, q.Name.String()+" "+strings.TrimPrefix(q.Type.String(), "Type"))
	z.mu.Unlock()
	if z.block != nil {
		select {
		case <-z.block:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	m.Response, m.Additionals = true, nil
	name := strings.ToLower(q.Name.String())
	m.RCode = z.rcode[name]
	for _, b := range z.records[name] {
		r := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 86400}, Body: b}
		if _, ok := b.(*dnsmessage.SOAResource); ok {
			m.Authorities = append(m.Authorities, r)
		} else {
			m.Answers = append(m.Answers, r)
		}
	}
	b, err := m.Pack()
	if err == nil && z.mangle != nil {
		b = z.mangle(b)
	}
	return b, err
}

func (z *zone) questions() []string {
	z.mu.Lock()
	defer z.mu.Unlock()
	return slices.Clone(z.asked)
}

func a(s string) *dnsmessage.AResource {
	return &dnsmessage.AResource{A: netip.MustParseAddr(s).As4()}
}

func name(s string) dnsmessage.Name { return dnsmessage.MustNewName(s) }

func query(t testing.TB, of string, typ dnsmessage.Type, edns int) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 4711, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: name(of), Type: typ, Class: dnsmessage.ClassINET}},
	}
	if edns > 0 {
		var h dnsmessage.ResourceHeader
		h.SetEDNS0(edns, 0, false)
		m.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// lookUp asks as the guest's resolver does.
func (r room) lookUp(t testing.TB, network, of string, typ dnsmessage.Type, edns int) (m dnsmessage.Message) {
	t.Helper()
	q := query(t, of, typ, edns)
	var got []byte
	if network == "udp" {
		c := r.guest.dialUDP("192.168.127.1:53")
		text, err := ask(c, string(q))
		if err != nil {
			t.Fatalf("%s: %v", of, err)
		}
		got = []byte(text)
	} else {
		c := r.guest.mustDial("192.168.127.1:53")
		if err := writeMessage(c, q); err != nil {
			t.Fatal(err)
		}
		var err error
		if got, err = readMessage(c, maxAnswer); err != nil {
			t.Fatalf("%s: %v", of, err)
		}
	}
	if err := m.Unpack(got); err != nil {
		t.Fatalf("%s: %v in %x", of, err, got)
	}
	if m.ID != 4711 || !m.Response || !m.RecursionAvailable || len(m.Questions) != 1 || m.Questions[0].Name.String() != of {
		t.Errorf("%s: answered by %+v", of, m)
	}
	return m
}

// addresses of the A records of m.
func addresses(m dnsmessage.Message) (list []string) {
	for _, x := range m.Answers {
		if b, ok := x.Body.(*dnsmessage.AResource); ok {
			list = append(list, netip.AddrFrom4(b.A).String())
		}
	}
	return list
}

func TestDNS(t *testing.T) {
	z := &zone{
		records: map[string][]dnsmessage.ResourceBody{
			"example.org.": {&dnsmessage.CNAMEResource{CNAME: name("edge.example.net.")}, a("198.51.100.7"), a("198.51.100.8"),
				&dnsmessage.AAAAResource{AAAA: netip.MustParseAddr("2600::1").As16()}},
			"rebind.example.org.": {a("127.0.0.1"), a("10.1.2.3"), a("169.254.169.254"), a("203.0.113.77"), a("198.51.100.9")},
			"intranet.":           {a("192.168.1.1")},
			"missing.":            {&dnsmessage.SOAResource{NS: name("ns."), MBox: name("m."), MinTTL: 86400}},
			"text.":               {&dnsmessage.TXTResource{TXT: []string{"hello"}}, &dnsmessage.UnknownResource{Type: 257, Data: []byte("\x00\x05issueca")}},
			"alias.":              {&dnsmessage.CNAMEResource{CNAME: name("1.1.168.192.in-addr.arpa.")}},
			"hints.":              {&dnsmessage.UnknownResource{Type: dnsmessage.TypeHTTPS, Data: []byte{0, 1, 0}}},
		},
		rcode: map[string]dnsmessage.RCode{"missing.": dnsmessage.RCodeNameError, "broken.": dnsmessage.RCodeServerFailure},
	}
	r := newRoom(t, Config{Resolver: z})
	for _, network := range []string{"udp", "tcp"} {
		m := r.lookUp(t, network, "Example.ORG.", dnsmessage.TypeA, 1232)
		if got := addresses(m); !slices.Equal(got, []string{"198.51.100.7", "198.51.100.8"}) || len(m.Answers) != 3 {
			t.Errorf("%s: %v", network, m.Answers)
		}
		for _, x := range m.Answers {
			if x.Header.TTL != maxTTL {
				t.Errorf("%s: a record lives %d s", network, x.Header.TTL)
			}
		}
		if len(m.Additionals) != 1 || m.Additionals[0].Header.Type != dnsmessage.TypeOPT {
			t.Errorf("%s: additionals %v", network, m.Additionals)
		}
		if got := addresses(r.lookUp(t, network, "rebind.example.org.", dnsmessage.TypeA, 0)); !slices.Equal(got, []string{"198.51.100.9"}) {
			t.Errorf("%s: rebinding %v", network, got)
		}
		if m := r.lookUp(t, network, "intranet.", dnsmessage.TypeA, 0); m.RCode != 0 || len(m.Answers) != 0 {
			t.Errorf("%s: a private name: %v", network, m)
		}
		if m := r.lookUp(t, network, "missing.", dnsmessage.TypeA, 0); m.RCode != dnsmessage.RCodeNameError || len(m.Authorities) != 1 || m.Authorities[0].Header.TTL != maxTTL {
			t.Errorf("%s: a missing name: %v", network, m)
		}
		if m := r.lookUp(t, network, "broken.", dnsmessage.TypeA, 0); m.RCode != dnsmessage.RCodeServerFailure {
			t.Errorf("%s: a broken zone: %v", network, m.RCode)
		}
		if m := r.lookUp(t, network, "text.", dnsmessage.TypeTXT, 0); len(m.Answers) != 2 || string(m.Answers[1].Body.(*dnsmessage.UnknownResource).Data) != "\x00\x05issueca" {
			t.Errorf("%s: text: %v", network, m.Answers)
		}
		if m := r.lookUp(t, network, "hints.", dnsmessage.TypeTXT, 0); len(m.Answers) != 0 {
			t.Errorf("%s: hints: %v", network, m.Answers)
		}
	}
	asked := len(z.questions())
	for _, typ := range []dnsmessage.Type{dnsmessage.TypeAAAA, dnsmessage.TypeHTTPS, dnsmessage.TypeSVCB} {
		if m := r.lookUp(t, "udp", "example.org.", typ, 0); m.RCode != 0 || len(m.Answers) != 0 {
			t.Errorf("%v: %v", typ, m)
		}
	}
	for _, typ := range []dnsmessage.Type{dnsmessage.TypeALL, dnsmessage.TypeAXFR} {
		if m := r.lookUp(t, "udp", "example.org.", typ, 0); m.RCode != dnsmessage.RCodeNotImplemented {
			t.Errorf("%v: %v", typ, m)
		}
	}
	for _, n := range []string{"1.1.168.192.in-addr.arpa.", "1.0.0.127.in-addr.arpa.", "1.0.0.0.ip6.arpa.", "IP6.arpa.",
		"1.168.192.IN-ADDR.arpa.", "168.192.in-addr.arpa.", "10.in-addr.arpa.", "172.in-addr.arpa.", "in-addr.arpa.",
		"lb._dns-sd._udp.0.1.168.192.in-addr.arpa.", "3.2.1.1.168.192.in-addr.arpa.", "5.0/26.1.168.192.in-addr.arpa.",
		"01.168.192.in-addr.arpa.", "256.168.192.in-addr.arpa.", "77.113.0.203.in-addr.arpa.", "113.0.203.in-addr.arpa."} {
		for _, typ := range []dnsmessage.Type{dnsmessage.TypePTR, dnsmessage.TypeNS} {
			if m := r.lookUp(t, "udp", n, typ, 0); m.RCode != dnsmessage.RCodeNameError {
				t.Errorf("%s: %v", n, m)
			}
		}
	}
	if n := len(z.questions()); n != asked {
		t.Errorf("the host's resolver was asked %q", z.questions()[asked:])
	}
	open := []string{"7.100.51.198.in-addr.arpa.", "100.51.198.in-addr.arpa.", "8.in-addr.arpa.", "7.0-63.100.51.198.in-addr.arpa.", "xin-addr.arpa."}
	for _, n := range open {
		r.lookUp(t, "udp", n, dnsmessage.TypePTR, 0)
	}
	if n := len(z.questions()); n != asked+len(open) {
		t.Errorf("of public addresses only these have a name: %q", z.questions()[asked:])
	}
	// A resolver that follows an alias gives what it found at its end.
	z.mangle = func(b []byte) []byte {
		var m dnsmessage.Message
		if err := m.Unpack(b); err != nil {
			t.Error(err)
		}
		h := dnsmessage.ResourceHeader{Name: name("1.1.168.192.in-addr.arpa."), Class: dnsmessage.ClassINET}
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: &dnsmessage.PTRResource{PTR: name("printer.lan.")}})
		h.Name = name("168.192.in-addr.arpa.")
		m.Authorities = append(m.Authorities, dnsmessage.Resource{Header: h, Body: &dnsmessage.SOAResource{NS: name("ns.lan."), MBox: name("m.")}})
		b, err := m.Pack()
		if err != nil {
			t.Error(err)
		}
		return b
	}
	if m := r.lookUp(t, "udp", "alias.", dnsmessage.TypePTR, 0); len(m.Answers) != 1 || len(m.Authorities) != 0 {
		t.Errorf("an alias of a private name: %v", m)
	}
	s := r.Stats()
	if s.Denied.Rebinding != 10 || s.LookupsFailed != 0 || s.PinnedAddrs != 3 {
		t.Errorf("stats %+v", s)
	}
	// The pins give a denial its name.
	r.SetPolicy(only{})
	if _, err := r.guest.dial(testContext(t), "198.51.100.7:443"); err == nil {
		t.Error("what the policy denies was reached")
	}
	list := r.Denials()
	if d := list[len(list)-1]; d.Destination.String() != "198.51.100.7:443" || !slices.Equal(d.Names, []string{"example.org"}) {
		t.Errorf("the denial is %+v", d)
	}
}

// TestDNSTruncation: an answer too long for a datagram says so, and comes whole
// by TCP.
func TestDNSTruncation(t *testing.T) {
	var many []dnsmessage.ResourceBody
	for i := range 100 {
		many = append(many, a(netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}).String()))
	}
	r := newRoom(t, Config{Resolver: &zone{records: map[string][]dnsmessage.ResourceBody{"many.": many}}})
	for edns, want := range map[int]bool{0: true, 600: true, 1232: true, 4096: false} {
		if m := r.lookUp(t, "udp", "many.", dnsmessage.TypeA, edns); m.Truncated != want || want != (len(m.Answers) == 0) {
			t.Errorf("for %d bytes: truncated %v, %d records", edns, m.Truncated, len(m.Answers))
		}
	}
	if m := r.lookUp(t, "tcp", "many.", dnsmessage.TypeA, 0); m.Truncated || len(m.Answers) != 100 {
		t.Errorf("by TCP: truncated %v, %d records", m.Truncated, len(m.Answers))
	}
}

// TestDNSHostile: what is not a question gets no answer or a plain refusal, and
// an upstream that lies is not believed.
func TestDNSHostile(t *testing.T) {
	z := &zone{records: map[string][]dnsmessage.ResourceBody{"example.org.": {a("198.51.100.7")}}}
	r := newRoom(t, Config{Resolver: z})
	good := query(t, "example.org.", dnsmessage.TypeA, 0)
	for what, edit := range map[string]func([]byte) []byte{
		"an answer":      func(b []byte) []byte { b[2] |= 0x80; return b },
		"a cut header":   func(b []byte) []byte { return b[:7] },
		"nothing at all": func(b []byte) []byte { return nil },
	} {
		if got := r.dns.answer(edit(slices.Clone(good)), true); got != nil {
			t.Errorf("%s was answered: %x", what, got)
		}
	}
	for what, c := range map[string]struct {
		edit func([]byte) []byte
		want dnsmessage.RCode
	}{
		"no question":   {func(b []byte) []byte { b[5] = 0; return b }, dnsmessage.RCodeFormatError},
		"two questions": {func(b []byte) []byte { b[5] = 2; return append(b, b[12:]...) }, dnsmessage.RCodeFormatError},
		"a cut name":    {func(b []byte) []byte { return b[:15] }, dnsmessage.RCodeFormatError},
		"an update":     {func(b []byte) []byte { b[2] = 5 << 3; return b }, dnsmessage.RCodeNotImplemented},
		"class chaos":   {func(b []byte) []byte { b[len(b)-1] = 3; return b }, dnsmessage.RCodeNotImplemented},
	} {
		var m dnsmessage.Message
		if err := m.Unpack(r.dns.answer(c.edit(slices.Clone(good)), true)); err != nil || m.RCode != c.want || m.ID != 4711 {
			t.Errorf("%s: %v, %v", what, m, err)
		}
	}
	if n := len(z.questions()); n != 0 {
		t.Errorf("the host's resolver was asked %q", z.questions())
	}
	for what, mangle := range map[string]func([]byte) []byte{
		"another id":       func(b []byte) []byte { b[0]++; return b },
		"another question": func(b []byte) []byte { b[13]++; return b },
		"a question":       func(b []byte) []byte { b[2] &^= 0x80; return b },
		"a cut answer":     func(b []byte) []byte { return b[:len(b)-1] },
		"nothing":          func(b []byte) []byte { return nil },
	} {
		z.mangle = mangle
		var m dnsmessage.Message
		if err := m.Unpack(r.dns.answer(slices.Clone(good), true)); err != nil || m.RCode != dnsmessage.RCodeServerFailure || len(m.Answers) != 0 {
			t.Errorf("upstream gave %s: %v, %v", what, m, err)
		}
	}
}

// TestDNSOverload: questions beyond the bound are dropped; when there is room
// again the guest's repetition is answered.
func TestDNSOverload(t *testing.T) {
	z := &zone{records: map[string][]dnsmessage.ResourceBody{"example.org.": {a("198.51.100.7")}}, block: make(chan struct{})}
	r := newRoom(t, Config{Resolver: z})
	c := r.guest.dialUDP("192.168.127.1:53")
	q := query(t, "example.org.", dnsmessage.TypeA, 0)
	for range maxLookups + 10 {
		before := r.Stats()
		c.Write(q)
		// One at a time: buffers on the way are not what is tested.
		eventually(t, "the question arrived", func() bool {
			s := r.Stats()
			return int(s.Questions)+int(s.QuestionsLost) > int(before.Questions)+int(before.QuestionsLost)
		})
	}
	eventually(t, "questions are dropped", func() bool { return r.Stats().QuestionsLost > 0 })
	if n := r.Stats().Questions; n != maxLookups {
		t.Errorf("%d questions are with the resolver", n)
	}
	close(z.block)
	if got := addresses(r.lookUp(t, "udp", "example.org.", dnsmessage.TypeA, 0)); len(got) != 1 {
		t.Errorf("afterwards %v", got)
	}
}

func TestParseResolvConf(t *testing.T) {
	const text = "# nameserver 1.1.1.1\nsearch lan\nnameserver 127.0.0.53 \n\nnameserver fe80::1%eth0\nnameserver bad\nnameserver\n" +
		"options edns0\nnameserver 2001:db8::53\nnameserver 9.9.9.9"
	want := []string{"127.0.0.53:53", "[fe80::1%eth0]:53", "[2001:db8::53]:53"}
	if got := parseResolvConf(text); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	r := &hostResolver{path: filepath.Join(t.TempDir(), "resolv.conf")}
	if got := r.current(); len(got) != 0 {
		t.Errorf("no file: %q", got)
	}
	if err := os.WriteFile(r.path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r.read = r.read.Add(-2 * resolvConfAge)
	if got := r.current(); !slices.Equal(got, want) {
		t.Errorf("after the file came: %q", got)
	}
}

// TestHostResolver talks to name servers as the host's are.
func TestHostResolver(t *testing.T) {
	z := &zone{records: map[string][]dnsmessage.ResourceBody{"example.org.": {a("198.51.100.7")}}}
	good := nameServer(t, z, false)
	cut := nameServer(t, z, true)
	refusing := nameServer(t, &zone{rcode: map[string]dnsmessage.RCode{"example.org.": dnsmessage.RCodeRefused}}, false)
	q, err := newQuery(dnsmessage.Question{Name: name("example.org."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET})
	if err != nil {
		t.Fatal(err)
	}
	for _, servers := range [][]string{{good}, {cut}, {refusing, good}, {"127.0.0.1:1", good}} {
		r := &hostResolver{servers: servers, path: "/nonexistent/resolv.conf"}
		r.read = r.read.AddDate(3000, 0, 0)
		b, err := r.Exchange(testContext(t), q)
		var m dnsmessage.Message
		if err != nil || m.Unpack(b) != nil || len(addresses(m)) != 1 {
			t.Errorf("%v: %v, %v", servers, m, err)
		}
	}
	r := &hostResolver{servers: []string{refusing}}
	r.read = r.read.AddDate(3000, 0, 0)
	b, err := r.Exchange(testContext(t), q)
	var m dnsmessage.Message
	if err != nil || m.Unpack(b) != nil || m.RCode != dnsmessage.RCodeRefused {
		t.Errorf("a refusal: %v, %v", m, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Exchange(ctx, q); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// nameServer serves z on one port by UDP and TCP; cut makes its datagrams say
// that they were cut short.
func nameServer(t *testing.T, z *zone, cut bool) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pc, err := net.ListenPacket("udp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			b, _ := z.Exchange(t.Context(), buf[:n])
			wrong := slices.Clone(b)
			wrong[0]++
			pc.WriteTo(wrong, from) // a forged one arrives first
			if cut {
				b[2] |= 2
			}
			pc.WriteTo(b, from)
		}
	})
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if q, err := readMessage(c, 4096); err == nil {
				b, _ := z.Exchange(t.Context(), q)
				writeMessage(c, b)
			}
			c.Close()
		}
	})
	t.Cleanup(func() {
		pc.Close()
		ln.Close()
		wg.Wait()
	})
	return ln.Addr().String()
}

// mirror answers each query with the query and records after it.
type mirror struct{ records []byte }

func (m *mirror) Exchange(_ context.Context, query []byte) ([]byte, error) {
	var p dnsmessage.Parser
	if _, err := p.Start(query); err != nil {
		return nil, err
	}
	b := slices.Clone(query)
	b[2] |= 0x80
	b[7], b[11] = 255, 0 // so many answers, no additionals
	// The question ends where the OPT record of eleven bytes begins.
	return append(b[:len(b)-11], m.records...), nil
}
