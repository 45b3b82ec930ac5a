package hyperv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"sandboxforge/internal/sshlink"
)

// Link is the way to the agent of one guest, as sshlink has it.
type Link interface {
	Dial(ctx context.Context) (io.ReadWriteCloser, error)
	WaitFailed(ctx context.Context) error
	Close() error
}

// newLink makes the way to this machine's guest. Nothing happens before it is
// dialled.
func (m *machine) newLink() Link {
	c := sshlink.Config{
		Dial: m.transport, User: m.b.c.SSHUser, Signer: m.keys.user, HostKeys: []ssh.PublicKey{m.keys.host.PublicKey()},
		// Until cloud-init has put our key in its place sshd may show another,
		// and at an old address another host does.
		HostKeyGrace: m.b.c.BootTimeout,
		Progress:     func(stage, message string) { m.note("%s: %s", stage, message) },
	}
	if m.b.c.NewLink != nil {
		return m.b.c.NewLink(c)
	}
	return sshlink.New(c)
}

// DialAgent implements backend.Machine.
func (m *machine) DialAgent(ctx context.Context) (io.ReadWriteCloser, error) {
	select {
	case <-m.done:
		return nil, m.notRunning()
	default:
	}
	s, err := m.link.Dial(ctx)
	if err != nil {
		select {
		case <-m.done:
			return nil, m.notRunning()
		default:
		}
		m.say("%v", err)
		return nil, err
	}
	m.mu.Lock()
	m.good, m.reached = m.dialled, true
	m.mu.Unlock()
	m.say("the agent's end was reached")
	return &watched{ReadWriteCloser: s, m: m}, nil
}

// tcpLimit bounds one try to reach an address.
const tcpLimit = 5 * time.Second

// transport opens a connection to where the guest may be: where it was reached
// last, if it still may be there, else to one candidate after the other, over
// several calls. Whether it is the guest, its host key tells.
func (m *machine) transport(ctx context.Context) (net.Conn, error) {
	a, err := m.b.addresses(ctx, m.r)
	if err != nil {
		m.say("Hyper-V does not tell an address: %v", err)
		return nil, err
	}
	ips := a.candidates()
	if len(ips) == 0 {
		why := "the guest has no address yet; the machine is " + a.State
		if a.NeighborError != "" {
			why += "; neighbours: " + a.NeighborError
		}
		m.say("%s", why)
		return nil, errors.New(why)
	}
	m.mu.Lock()
	first := m.turn % len(ips)
	m.turn++
	if i := slices.Index(ips, m.good); i >= 0 {
		first = i
		m.good = netip.Addr{} // once: it may be another's by now
	}
	m.mu.Unlock()
	var all error
	for i := range ips {
		ip := ips[(first+i)%len(ips)]
		c, err := m.connect(ctx, netip.AddrPortFrom(ip, uint16(m.b.c.SSHPort)))
		if err == nil {
			m.mu.Lock()
			m.dialled = ip
			m.turn = first + i + 1 // if this is not it, then the next
			m.mu.Unlock()
			m.say("something answers at %s", ip)
			return c, nil
		}
		all = errors.Join(all, fmt.Errorf("%s: %w", ip, err))
	}
	m.say("nobody answers: %v", all)
	return nil, all
}

func (m *machine) connect(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, tcpLimit)
	defer cancel()
	if m.b.c.Connect != nil {
		return m.b.c.Connect(ctx, to)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp4", to.String())
}

// say notes what is new.
func (m *machine) say(format string, args ...any) {
	text := strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
	m.mu.Lock()
	same := text == m.said
	m.said = text
	m.mu.Unlock()
	if !same {
		m.note("%s", text)
	}
}

// watched is a stream whose end makes the watcher look at once: a VM that ended
// is the likeliest reason.
type watched struct {
	io.ReadWriteCloser
	m    *machine
	once sync.Once
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.ReadWriteCloser.Read(b)
	if err != nil {
		w.once.Do(w.m.lookNow)
	}
	return n, err
}
