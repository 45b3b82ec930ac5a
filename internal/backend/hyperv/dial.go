package hyperv

import (
	"context"
	"io"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"sandboxforge/internal/fault"
)

// Endpoint is a guest as it is reached over ssh.
type Endpoint struct {
	Name    string         // of the VM
	Address netip.AddrPort // of its sshd
	User    string
	Key     ssh.Signer
	HostKey ssh.PublicKey // the only one to accept
}

// Dialer opens a stream to the agent of a guest, and makes sure that there is
// one. It fails soon where nobody answers or another host does.
type Dialer func(ctx context.Context, e Endpoint) (io.ReadWriteCloser, error)

// dialing is a search for the guest that goes on when its caller leaves: the
// first one may install things in the guest, longer than one caller waits.
type dialing struct {
	done   chan struct{}
	cancel context.CancelFunc
	stream io.ReadWriteCloser
	err    error
}

// DialAgent implements backend.Machine.
func (m *machine) DialAgent(ctx context.Context) (io.ReadWriteCloser, error) {
	for {
		m.mu.Lock()
		if m.ended {
			m.mu.Unlock()
			return nil, m.notRunning()
		}
		old := m.stream
		m.stream = nil
		d := m.dialing
		if d == nil {
			d = &dialing{done: make(chan struct{})}
			var sctx context.Context
			sctx, d.cancel = context.WithCancel(m.life)
			m.dialing = d
			go func() { // ends with the VM at the latest
				defer close(d.done)
				defer d.cancel()
				d.stream, d.err = m.search(sctx)
			}()
		}
		m.mu.Unlock()
		if old != nil {
			old.Close()
		}
		select {
		case <-d.done:
		case <-m.done:
			return nil, m.notRunning()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		m.mu.Lock()
		if m.dialing != d { // another caller has it
			m.mu.Unlock()
			continue
		}
		m.dialing = nil
		if m.ended || d.err != nil {
			m.mu.Unlock()
			if d.stream != nil {
				d.stream.Close()
			}
			if d.err != nil && m.life.Err() == nil {
				return nil, d.err
			}
			return nil, m.notRunning()
		}
		s := &watched{ReadWriteCloser: d.stream, m: m}
		m.stream, m.reached = s, true
		m.mu.Unlock()
		return s, nil
	}
}

// searchPause is between two rounds over the addresses.
const searchPause = 500 * time.Millisecond

// search looks for the guest until one answers with its key, or ctx ends.
func (m *machine) search(ctx context.Context) (io.ReadWriteCloser, error) {
	if m.b.c.Dial == nil {
		return nil, errNoDialer
	}
	said := ""
	say := func(text string) { // once for each news
		if text != said {
			said = text
			m.note("%s", text)
		}
	}
	for {
		a, err := m.b.addresses(ctx, m.r)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			say("Hyper-V does not tell an address: " + err.Error())
		default:
			ips := a.candidates()
			if len(ips) == 0 {
				text := "the guest has no address yet; the machine is " + a.State
				if a.NeighborError != "" {
					text += "; neighbours: " + a.NeighborError
				}
				say(text)
			}
			for _, ip := range ips {
				stream, err := m.b.c.Dial(ctx, Endpoint{
					Name: m.r.Spec.Name, Address: netip.AddrPortFrom(ip, uint16(m.b.c.SSHPort)), User: m.b.c.SSHUser, Key: m.keys.user, HostKey: m.keys.host.PublicKey(),
				})
				if err == nil {
					say("the agent's end was reached at " + ip.String())
					return stream, nil
				}
				if ctx.Err() != nil {
					return nil, context.Cause(ctx)
				}
				say(ip.String() + ": " + fault.From(err).Error())
			}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(min(searchPause, 5*m.b.c.Poll)):
		}
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

func splitLines(b []byte) []string {
	return strings.Split(strings.TrimRight(string(b), "\n"), "\n")
}
