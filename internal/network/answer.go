package network

import (
	"context"
	"errors"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// maxTTL is the longest that the guest may keep an answer, in seconds: a
	// change of policy or of the network reaches it soon.
	maxTTL = 30
	// maxRecords bounds what of an answer is handed on.
	maxRecords = 128
)

// answer gives the reply to one message of the guest; nil is none.
func (s *dnsServer) answer(m []byte, udp bool) []byte {
	q, err := parseQuestion(m)
	if errors.Is(err, errNotAsked) {
		s.counters.questionsLost.Add(1)
		return nil
	}
	s.counters.questions.Add(1)
	var r dnsmessage.Message
	if err != nil {
		r.RCode = dnsmessage.RCodeFormatError
	} else {
		r = s.resolve(q)
		r.Questions = []dnsmessage.Question{q.q}
	}
	r.ID, r.Response, r.OpCode = q.header.ID, true, q.header.OpCode
	r.RecursionDesired, r.RecursionAvailable = q.header.RecursionDesired, true
	if q.edns {
		var h dnsmessage.ResourceHeader
		if h.SetEDNS0(ednsOwn, dnsmessage.RCodeSuccess, false) == nil {
			r.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
		}
	}
	b, err := r.Pack()
	if err == nil && (!udp || len(b) <= q.limit) {
		return b
	}
	r.Answers, r.Authorities = nil, nil
	if err != nil {
		r.RCode = dnsmessage.RCodeServerFailure
	} else {
		r.Truncated = true
	}
	if b, err = r.Pack(); err != nil {
		return nil
	}
	return b
}

// resolve decides what a question gets. Only A records give addresses: IPv6 is
// not carried, and the hints in HTTPS and SVCB records would name addresses
// that nobody vetted. Records of other types are handed on as they are, those of
// zones that only the host's network knows among them: they give names, and no
// way there. A name that the policy denies does not exist: REFUSED would read as
// a passing failure, and clients would ask on and on.
func (s *dnsServer) resolve(q question) (r dnsmessage.Message) {
	if q.header.OpCode != 0 || q.q.Class != dnsmessage.ClassINET {
		r.RCode = dnsmessage.RCodeNotImplemented
		return r
	}
	name := plainName(q.q.Name)
	if d := s.policy().Name(withoutService(name)); !d.Allow {
		s.deny(deniedName, "dns", netip.AddrPort{}, []string{name}, d.Reason)
		r.RCode = dnsmessage.RCodeNameError
		return r
	}
	switch q.q.Type {
	case dnsmessage.TypeAAAA, dnsmessage.TypeHTTPS, dnsmessage.TypeSVCB:
		return r
	case dnsmessage.TypeALL, dnsmessage.TypeAXFR, typeIXFR, typeMAILA, typeMAILB:
		r.RCode = dnsmessage.RCodeNotImplemented
		return r
	}
	if s.reverseDenied(name) {
		r.RCode = dnsmessage.RCodeNameError
		return r
	}
	r, err := s.lookup(q.q, name)
	if err != nil {
		s.counters.lookupsFailed.Add(1)
		s.config.Log.Debug("network lookup failed", "name", name, "error", err)
		return dnsmessage.Message{Header: dnsmessage.Header{RCode: dnsmessage.RCodeServerFailure}}
	}
	return r
}

// lookup asks the host's resolver. Nothing of the guest's message but the
// question reaches it.
func (s *dnsServer) lookup(q dnsmessage.Question, name string) (r dnsmessage.Message, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, lookupTimeout)
	defer cancel()
	query, err := newQuery(q)
	if err != nil {
		return r, err
	}
	answer, err := s.config.Resolver.Exchange(ctx, query)
	if err != nil {
		return r, err
	}
	if !answers(query, answer) {
		return r, errors.New("the resolver answered another question")
	}
	return s.vet(answer, name)
}

// vet takes from an answer what the guest may see, and remembers the addresses
// it is given.
func (s *dnsServer) vet(answer []byte, name string) (r dnsmessage.Message, err error) {
	var p dnsmessage.Parser
	h, err := p.Start(answer)
	if err != nil {
		return r, err
	}
	r.RCode = h.RCode
	if err := p.SkipAllQuestions(); err != nil {
		return r, err
	}
	for len(r.Answers) < maxRecords {
		x, err := p.Answer()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			break
		}
		if err != nil {
			return r, err
		}
		switch body := x.Body.(type) {
		case *dnsmessage.AResource:
			if !s.handOut(netip.AddrFrom4(body.A), name) {
				continue
			}
		case *dnsmessage.AAAAResource, *dnsmessage.OPTResource:
			continue
		}
		if x.Header.Type == dnsmessage.TypeHTTPS || x.Header.Type == dnsmessage.TypeSVCB {
			continue
		}
		// A name of anybody's can be an alias of a reverse name.
		if s.reverseDenied(plainName(x.Header.Name)) {
			continue
		}
		x.Header.TTL = min(x.Header.TTL, maxTTL)
		r.Answers = append(r.Answers, x)
	}
	if len(r.Answers) == maxRecords {
		return r, nil
	}
	// The zone's record says how long to believe that there is nothing.
	for range maxRecords {
		x, err := p.Authority()
		if err != nil {
			break
		}
		if _, ok := x.Body.(*dnsmessage.SOAResource); ok && !s.reverseDenied(plainName(x.Header.Name)) {
			x.Header.TTL = min(x.Header.TTL, maxTTL)
			r.Authorities = append(r.Authorities, x)
			break
		}
	}
	return r, nil
}

// handOut says whether the guest may be told of the address, and remembers for
// which name it was. A name that points into denied space is an attack
// (rebinding) or the host's private zone; either way the address is out of
// reach.
func (s *dnsServer) handOut(a netip.Addr, name string) bool {
	if reason := s.denied.reason(a); reason != "" {
		s.deny(deniedRebinding, "dns", netip.AddrPortFrom(a, 0), []string{name}, "the answer names "+reason)
		return false
	}
	s.pins.add(a, name)
	return true
}

// reverseDenied says whether name is below, at or above the reverse names of
// addresses that the guest cannot reach: what the host's resolver knows of its
// neighbours is not the guest's business.
func (s *dnsServer) reverseDenied(name string) bool {
	if name == "ip6.arpa" || strings.HasSuffix(name, ".ip6.arpa") {
		return true
	}
	reversed, ok := strings.CutSuffix("."+name, ".in-addr.arpa")
	return ok && s.denied.overlaps(reversedPrefix(reversed))
}

// reversedPrefix is the network that the labels stand for, the last its first
// byte: as many as are numbers, at most four. Labels in front of them, as in
// 0-63.2.0.192 and lb._dns-sd._udp.0.2.0.192, are names within it.
func reversedPrefix(labels string) netip.Prefix {
	var a [4]byte
	bytes := 0
	for bytes < len(a) {
		i := strings.LastIndexByte(labels, '.')
		n, err := strconv.ParseUint(labels[i+1:], 10, 8)
		if err != nil {
			break
		}
		a[bytes] = byte(n)
		bytes++
		labels = labels[:max(i, 0)]
	}
	return netip.PrefixFrom(netip.AddrFrom4(a), 8*bytes)
}
