package network

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Resolver answers DNS messages for the host.
type Resolver interface {
	// Exchange answers query, a whole message with one question that wants
	// recursion and takes datagrams of 1232 bytes. The answer is a whole message
	// too, untruncated, with the query's id and question. It must honour ctx,
	// whose deadline is a few seconds away.
	Exchange(ctx context.Context, query []byte) ([]byte, error)
}

const (
	resolvConf      = "/etc/resolv.conf"
	resolvConfAge   = 2 * time.Second // how long it is believed unread
	resolvConfLimit = 64 << 10        // bytes
	maxServers      = 3               // as in every C library
	serverTimeout   = 2 * time.Second
	maxAnswer       = 65535
)

// hostResolver asks the servers of resolv.conf, the first that answers. Where
// there is no such file the system's own look-up is asked, which knows
// addresses only.
type hostResolver struct {
	path string

	mu      sync.Mutex
	servers []string // host:port
	read    time.Time
}

// Exchange implements Resolver.
func (r *hostResolver) Exchange(ctx context.Context, query []byte) ([]byte, error) {
	servers := r.current()
	if len(servers) == 0 {
		return lookupSystem(ctx, query)
	}
	var last []byte
	var errs []error
	for range 2 {
		for _, s := range servers {
			answer, err := exchange(ctx, s, query)
			switch {
			case ctx.Err() != nil:
				return nil, errors.Join(append(errs, ctx.Err())...)
			case err != nil:
				errs = append(errs, err)
			case passing(answer):
				last = answer
			default:
				return answer, nil
			}
		}
		if last != nil {
			return last, nil
		}
	}
	return nil, errors.Join(errs...)
}

// passing says whether another server may know better.
func passing(answer []byte) bool {
	var p dnsmessage.Parser
	h, err := p.Start(answer)
	return err != nil || h.RCode == dnsmessage.RCodeServerFailure || h.RCode == dnsmessage.RCodeRefused
}

func (r *hostResolver) current() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.read.IsZero() || time.Since(r.read) > resolvConfAge {
		if text, err := readLimited(r.path, resolvConfLimit); err == nil {
			r.servers = parseResolvConf(text)
		} else if errors.Is(err, fs.ErrNotExist) {
			r.servers = nil
		}
		r.read = time.Now()
	}
	return r.servers
}

func readLimited(path string, limit int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit))
	return string(b), err
}

// parseResolvConf gives the name servers of a resolv.conf.
func parseResolvConf(text string) (servers []string) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" || len(servers) == maxServers {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil {
			servers = append(servers, netip.AddrPortFrom(a, dnsPort).String())
		}
	}
	return servers
}

// exchange asks one server, by TCP if its datagram was cut short.
func exchange(ctx context.Context, server string, query []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	answer, err := exchangeUDP(ctx, server, query)
	if err != nil || answer[2]&2 == 0 { // the truncated bit
		return answer, err
	}
	c, err := dialUntil(ctx, "tcp", server)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := writeMessage(c, query); err != nil {
		return nil, err
	}
	answer, err = readMessage(c, maxAnswer)
	if err == nil && !answers(query, answer) {
		err = errors.New("the server answered another question")
	}
	return answer, err
}

// exchangeUDP waits for the answer among whatever else arrives.
func exchangeUDP(ctx context.Context, server string, query []byte) ([]byte, error) {
	c, err := dialUntil(ctx, "udp", server)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if _, err := c.Write(query); err != nil {
		return nil, err
	}
	buf := make([]byte, ednsMost)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return nil, err
		}
		if answers(query, buf[:n]) {
			return buf[:n], nil
		}
	}
}

// dialUntil makes a connection that ends with ctx's deadline or cancellation.
func dialUntil(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	return &untilConn{Conn: c, stop: stop}, nil
}

type untilConn struct {
	net.Conn
	stop func() bool
}

func (c *untilConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// lookupSystem answers a question for addresses from the system's look-up.
func lookupSystem(ctx context.Context, query []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	q := m.Questions[0]
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	if q.Type != dnsmessage.TypeA {
		m.RCode = dnsmessage.RCodeNotImplemented
		return m.Pack()
	}
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", q.Name.String())
	var failure *net.DNSError
	switch {
	case errors.As(err, &failure) && failure.IsNotFound:
		m.RCode = dnsmessage.RCodeNameError
	case err != nil:
		return nil, err
	}
	for _, a := range list[:min(len(list), maxRecords)] {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: maxTTL},
			Body:   &dnsmessage.AResource{A: a.Unmap().As4()},
		})
	}
	return m.Pack()
}
