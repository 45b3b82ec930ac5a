package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
)

// serveUDP answers datagrams at address of the world with themselves, upper
// case, and hands out its socket.
func (w *world) serveUDP(t testing.TB, address string) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 65535)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			c.WriteTo(bytes.ToUpper(buf[:n]), from)
		}
	}()
	t.Cleanup(func() {
		c.Close()
		<-done
	})
	w.set("udp", address, c.LocalAddr().String())
	return c
}

// ask sends a datagram and waits for one, or for the error that an ICMP message
// makes, which gonet's Read notices only when it starts.
func ask(c *gonet.UDPConn, text string) (string, error) {
	if _, err := c.Write([]byte(text)); err != nil {
		return "", err
	}
	buf := make([]byte, 65535)
	for end := time.Now().Add(5 * time.Second); ; {
		c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		n, err := c.Read(buf)
		var timeout net.Error
		if err == nil || !errors.As(err, &timeout) || !timeout.Timeout() || time.Now().After(end) {
			return string(buf[:n]), err
		}
	}
}

func TestUDP(t *testing.T) {
	for _, mtu := range []int{1500, DefaultMTU} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			r := newRoom(t, Config{MTU: mtu})
			r.world.serveUDP(t, public)
			c := r.guest.dialUDP(public)
			for _, text := range []string{"one", "two", "", "three"} {
				if got, err := ask(c, text); err != nil || got != strings.ToUpper(text) {
					t.Errorf("got %q, %v", got, err)
				}
			}
			if s := r.Stats(); s.UDPFlows != 1 || s.UDPOpened != 1 {
				t.Errorf("stats %+v", s)
			}
			// With a small MTU both ways go in fragments.
			large := strings.Repeat("x", 40000)
			if got, err := ask(c, large); err != nil || got != strings.ToUpper(large) {
				t.Errorf("of a large datagram %d bytes came back, %v", len(got), err)
			}
		})
	}
}

// TestUDPUnreachable: what is denied and what nobody takes fails at once.
func TestUDPUnreachable(t *testing.T) {
	r := newRoom(t, Config{})
	gone := r.world.serveUDP(t, public)
	gone.Close()
	for _, to := range []string{"10.1.2.3:53", "192.168.127.1:123", "203.0.113.77:123", "198.51.100.9:9", public} {
		if got, err := ask(r.guest.dialUDP(to), "x"); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: got %q, %v", to, got, err)
		}
	}
	if s := r.Stats(); s.Denied.Address != 2 || s.Denied.Gateway != 1 {
		t.Errorf("stats %+v", s)
	}
	eventually(t, "all flows are gone", func() bool { return r.Stats().UDPFlows == 0 })
}

func TestUDPFlowLimit(t *testing.T) {
	r := newRoom(t, Config{})
	r.flows.maxUDP = 1
	r.world.serveUDP(t, public)
	if _, err := ask(r.guest.dialUDP(public), "x"); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(r.guest.dialUDP(public), "x"); err == nil {
		t.Errorf("a flow beyond the cap answered %q", got)
	}
}

// TestUDPStream: two questions and an answer make a stream, in whatever order
// they come; one question with its answers does not.
func TestUDPStream(t *testing.T) {
	for _, order := range []string{"ask ask answer", "ask answer ask", "ask answer answer"} {
		t.Run(order, func(t *testing.T) {
			r := newRoom(t, Config{})
			server, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			server.SetReadDeadline(time.Now().Add(20 * time.Second))
			r.world.set("udp", public, server.LocalAddr().String())
			c := r.guest.dialUDP(public)
			c.SetReadDeadline(time.Now().Add(20 * time.Second))
			buf := make([]byte, 16)
			var from net.Addr
			for _, step := range strings.Fields(order) {
				if step == "ask" {
					c.Write([]byte("x"))
					_, from, err = server.ReadFrom(buf)
				} else if _, err = server.WriteTo([]byte("y"), from); err == nil {
					_, err = c.Read(buf)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			want := udpStream
			if order == "ask answer answer" {
				want = udpOneShot
			}
			r.udp.mu.Lock()
			defer r.udp.mu.Unlock()
			for _, f := range r.udp.open {
				if got := time.Duration(f.idle.limit.Load()); got != want {
					t.Errorf("it ends after %v without a datagram, want %v", got, want)
				}
			}
			if len(r.udp.open) != 1 {
				t.Errorf("%d flows are open", len(r.udp.open))
			}
		})
	}
}

// writeRefused is a connected UDP socket whose writes are the ones that are told
// of a refusal.
type writeRefused struct{ net.Conn }

func (writeRefused) Write([]byte) (int, error) { return 0, syscall.ECONNREFUSED }

func (w writeRefused) DialContext(context.Context, string, string) (net.Conn, error) { return w, nil }

// TestUDPRefusedWrite: a refusal that a write is told of reaches the guest too.
func TestUDPRefusedWrite(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	r := newRoom(t, Config{Dialer: writeRefused{ours}})
	if got, err := ask(r.guest.dialUDP(public), "x"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %q, %v", got, err)
	}
	eventually(t, "the flow is gone", func() bool { return r.Stats().UDPFlows == 0 })
}
