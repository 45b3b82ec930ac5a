package network

import (
	"errors"
	"math/rand/v2"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// ednsOwn is the size of datagram we accept, ednsMost the largest we send,
	// ednsNone what a client takes that says nothing.
	ednsOwn  = 1232
	ednsMost = 4096
	ednsNone = 512
)

// Types that the package dnsmessage has no name for.
const (
	typeIXFR  dnsmessage.Type = 251
	typeMAILB dnsmessage.Type = 253
	typeMAILA dnsmessage.Type = 254
)

// question is what a guest asked.
type question struct {
	header dnsmessage.Header
	q      dnsmessage.Question
	edns   bool
	limit  int // bytes of an answer by UDP
}

// errNotAsked: the message is no question at all and gets no answer.
var errNotAsked = errors.New("not a question")

// parseQuestion reads a message of the guest. Any other error than errNotAsked
// comes with a header to answer to.
func parseQuestion(m []byte) (question, error) {
	q := question{limit: ednsNone}
	var p dnsmessage.Parser
	var err error
	if q.header, err = p.Start(m); err != nil || q.header.Response {
		return q, errNotAsked
	}
	if q.q, err = p.Question(); err != nil {
		return q, err
	}
	if _, err = p.Question(); !errors.Is(err, dnsmessage.ErrSectionDone) {
		return q, errors.New("more than one question")
	}
	for _, skip := range []func() error{p.SkipAllAnswers, p.SkipAllAuthorities} {
		if err := skip(); err != nil {
			return q, err
		}
	}
	for {
		h, err := p.AdditionalHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return q, nil
		}
		if err != nil {
			return q, err
		}
		if h.Type == dnsmessage.TypeOPT {
			q.edns = true
			q.limit = max(ednsNone, min(int(h.Class), ednsMost))
		}
		if err := p.SkipAdditional(); err != nil {
			return q, err
		}
	}
}

// newQuery makes a message of our own that asks q.
func newQuery(q dnsmessage.Question) ([]byte, error) {
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: uint16(rand.Uint32()), RecursionDesired: true},
		Questions: []dnsmessage.Question{q},
	}
	var h dnsmessage.ResourceHeader
	if err := h.SetEDNS0(ednsOwn, dnsmessage.RCodeSuccess, false); err != nil {
		return nil, err
	}
	m.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
	return m.Pack()
}

// answers says whether answer is one to query.
func answers(query, answer []byte) bool {
	var p, q dnsmessage.Parser
	hq, err := q.Start(query)
	if err != nil {
		return false
	}
	ha, err := p.Start(answer)
	if err != nil || !ha.Response || ha.ID != hq.ID {
		return false
	}
	asked, err := q.Question()
	if err != nil {
		return false
	}
	got, err := p.Question()
	return err == nil && got.Type == asked.Type && got.Class == asked.Class && strings.EqualFold(got.Name.String(), asked.Name.String())
}

// plainName gives a name in lower case, without its last dot, safe to print.
func plainName(n dnsmessage.Name) string {
	return strings.TrimSuffix(strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '?'
	}, n.String()), ".")
}

// withoutService takes service labels off: _https._tcp.host is about host.
func withoutService(name string) string {
	for strings.HasPrefix(name, "_") {
		_, rest, ok := strings.Cut(name, ".")
		if !ok {
			break
		}
		name = rest
	}
	return name
}
