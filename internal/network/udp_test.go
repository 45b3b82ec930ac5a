package network

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"
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
