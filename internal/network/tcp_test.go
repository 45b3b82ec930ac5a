package network

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
)

const public = "198.51.100.7:80" // an address that is nobody's

func TestTCPReachesTheWorld(t *testing.T) {
	r := newRoom(t, Config{})
	r.world.serve(t, public, echo)
	c := r.guest.mustDial(public)
	if err := roundTrip(c, "hello"); err != nil {
		t.Fatal(err)
	}
	if s := r.Stats(); s.TCPFlows != 1 || s.TCPOpened != 1 || !s.Connected || s.Connects != 1 {
		t.Errorf("stats %+v", s)
	}
	c.Close()
	eventually(t, "the flow is gone", func() bool { return r.Stats().TCPFlows == 0 })
}

// noise is n bytes that do not compress, the same for the same n.
func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

func TestTCPBulk(t *testing.T) {
	for _, mtu := range []int{1500, DefaultMTU} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			r := newRoom(t, Config{MTU: mtu})
			r.world.serve(t, public, echo)
			c := r.guest.mustDial(public)
			sent := noise(8 << 20)
			go func() {
				c.Write(sent)
				c.CloseWrite()
			}()
			h := sha256.New()
			n, err := io.Copy(h, c)
			if want := sha256.Sum256(sent); err != nil || !bytes.Equal(h.Sum(nil), want[:]) {
				t.Errorf("%d of %d bytes came back, %v", n, len(sent), err)
			}
		})
	}
}

// TestBigBuffers: connections share so many big buffers, go on without, and give
// them back.
func TestBigBuffers(t *testing.T) {
	for _, places := range []int{0, 1} {
		t.Run(fmt.Sprint(places), func(t *testing.T) {
			r := newRoom(t, Config{})
			r.lender = make(lender, places)
			r.world.serve(t, public, echo)
			var all sync.WaitGroup
			seen := make(chan struct{})
			for range 3 {
				c := r.guest.mustDial(public)
				sent := noise(2 << 20)
				all.Go(func() {
					c.Write(sent)
					<-seen
					c.CloseWrite()
				})
				all.Go(func() {
					if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
						t.Errorf("%d of %d bytes came back, %v", len(got), len(sent), err)
					}
				})
			}
			eventually(t, "all are out that there are", func() bool { return len(r.lender) == places })
			close(seen)
			all.Wait()
			eventually(t, "all are back", func() bool { return len(r.lender) == 0 })
		})
	}
}

// TestRefused: upstream is dialled before the guest's handshake is answered, so
// a refusal arrives as one, and so does a denial, which dials nothing.
func TestRefused(t *testing.T) {
	r := newRoom(t, Config{})
	_, err := r.guest.dial(testContext(t), public)
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("nobody listens: %v", err)
	}
	if got := r.world.dialled(); len(got) != 1 || got[0] != "tcp "+public {
		t.Errorf("dialled %q", got)
	}
	_, err = r.guest.dial(testContext(t), "10.0.2.2:80")
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("denied: %v", err)
	}
	if got := r.world.dialled(); len(got) != 1 {
		t.Errorf("dialled %q", got)
	}
	s := r.Stats()
	if s.DialsFailed != 1 || s.Denied.Address != 1 || s.TCPFlows != 0 || s.TCPOpened != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestDialTimeout(t *testing.T) {
	r := newRoom(t, Config{DialTimeout: 50 * time.Millisecond})
	r.world.hang = map[string]bool{public: true}
	if _, err := r.guest.dial(testContext(t), public); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a destination that never answers: %v", err)
	}
}

// TestHalfClose: an end of one direction does not end the other.
func TestHalfClose(t *testing.T) {
	r := newRoom(t, Config{})
	t.Run("guest first", func(t *testing.T) {
		r.world.serve(t, public, func(c *net.TCPConn) {
			all, err := io.ReadAll(c)
			if err != nil {
				return
			}
			c.Write(bytes.ToUpper(all))
		})
		c := r.guest.mustDial(public)
		c.Write([]byte("question"))
		c.CloseWrite()
		if got, err := io.ReadAll(c); string(got) != "QUESTION" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	})
	t.Run("world first", func(t *testing.T) {
		heard := make(chan string, 1)
		r.world.serve(t, public, func(c *net.TCPConn) {
			c.Write([]byte("greeting"))
			c.CloseWrite()
			all, _ := io.ReadAll(c)
			heard <- string(all)
		})
		c := r.guest.mustDial(public)
		if got, err := io.ReadAll(c); string(got) != "greeting" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		c.Write([]byte("farewell"))
		c.CloseWrite()
		if got := <-heard; got != "farewell" {
			t.Errorf("the world heard %q", got)
		}
	})
	eventually(t, "all flows are gone", func() bool { return r.Stats().TCPFlows == 0 })
}

// TestReset: a failure of one side is a failure of the other, not an end.
func TestReset(t *testing.T) {
	r := newRoom(t, Config{})
	seen := make(chan error, 1)
	r.world.serve(t, public, func(c *net.TCPConn) {
		io.ReadFull(c, make([]byte, 1))
		c.SetLinger(0)
	})
	c := r.guest.mustDial(public)
	c.Write([]byte("x"))
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the guest saw %v for a reset of the world", err)
	}
	r.world.serve(t, public, func(c *net.TCPConn) {
		_, err := io.Copy(io.Discard, c)
		seen <- err
	})
	c = r.guest.mustDial(public)
	c.Write([]byte("x"))
	eventually(t, "the flow is open", func() bool { return r.Stats().TCPFlows == 1 })
	for _, e := range r.guest.stack.RegisteredEndpoints() {
		e.Abort()
	}
	if err := <-seen; err == nil {
		t.Error("the world saw an end for a reset of the guest")
	}
	eventually(t, "all flows are gone", func() bool { return r.Stats().TCPFlows == 0 })
}

func TestManyFlows(t *testing.T) {
	const many = 1000
	r := newRoom(t, Config{})
	r.world.serve(t, public, echo)
	ctx := testContext(t)
	conns := make(chan net.Conn, many)
	fails := make(chan error, many)
	places := make(chan struct{}, 100)
	for range many {
		go func() {
			places <- struct{}{}
			defer func() { <-places }()
			c, err := r.guest.dial(ctx, public)
			if err == nil {
				err = roundTrip(c, "one of many")
			}
			if err != nil {
				fails <- err
				return
			}
			conns <- c
		}()
	}
	var all []net.Conn
	for len(all) < many {
		select {
		case c := <-conns:
			all = append(all, c)
		case err := <-fails:
			t.Fatal(err)
		case <-ctx.Done():
			t.Fatalf("%d of %d", len(all), many)
		}
	}
	if s := r.Stats(); s.TCPFlows != many {
		t.Errorf("%d flows are open", s.TCPFlows)
	}
	for i, c := range all { // and each is alive while the others are
		if err := roundTrip(c, "again"); err != nil {
			t.Fatalf("flow %d: %v", i, err)
		}
		c.Close()
	}
	eventually(t, "all flows are gone", func() bool { return r.Stats().TCPFlows == 0 })
	if b := r.flows.budget; b != bufferBudget {
		t.Errorf("of the budget %d is left, want %d", b, bufferBudget)
	}
}

func TestFlowLimit(t *testing.T) {
	r := newRoom(t, Config{})
	r.flows.maxTCP = 2
	r.world.serve(t, public, echo)
	one, _ := r.guest.mustDial(public), r.guest.mustDial(public)
	if _, err := r.guest.dial(testContext(t), public); err == nil {
		t.Error("a third flow was let in")
	}
	if d := r.Stats().Denied.Limit; d != 1 {
		t.Errorf("%d denials", d)
	}
	one.Close()
	eventually(t, "a place is free", func() bool { return r.Stats().TCPFlows == 1 })
	r.guest.mustDial(public)
}

// TestReconnect cuts the link in the middle of a transfer: frames are lost, the
// connection is not.
func TestReconnect(t *testing.T) {
	r := newRoom(t, Config{})
	r.world.serve(t, public, echo)
	c := r.guest.mustDial(public)
	sent := noise(4 << 20)
	go func() {
		c.Write(sent)
		c.CloseWrite()
	}()
	got := make([]byte, len(sent))
	for i, step := 0, len(sent)/4; i < len(sent); i += step {
		if _, err := io.ReadFull(c, got[i:i+step]); err != nil {
			t.Fatal(err)
		}
		r.guest.disconnect()
	}
	if !bytes.Equal(got, sent) {
		t.Error("what came back is not what was sent")
	}
	eventually(t, "the link is back", func() bool { s := r.Stats(); return s.Connects > 4 && s.Connected })
}

// TestBlockedLink: a hypervisor that does not read holds up nothing but its
// guest, and afterwards its guest goes on.
func TestBlockedLink(t *testing.T) {
	r := newRoom(t, Config{})
	r.world.serve(t, public, func(c *net.TCPConn) {
		for range 12 {
			if _, err := c.Write(noise(1 << 20)); err != nil {
				return
			}
		}
		io.Copy(io.Discard, c)
	})
	listen(t, r.guest, 22)
	var conns []net.Conn
	for range 8 {
		c := r.guest.mustDial(public)
		if _, err := io.CopyN(io.Discard, c, 4<<20); err != nil { // windows open
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	r.guest.pause(true)
	done := make(chan int64, len(conns))
	for _, c := range conns {
		go func() {
			n, _ := io.CopyN(io.Discard, c, 8<<20)
			done <- n
		}()
	}
	// What the flows have in flight may fit: fill the queue with what the guest
	// will ignore.
	filler := make([]byte, 60000)
	for tries := 0; r.Stats().FramesLost == 0; tries++ {
		if tries > 1000 {
			t.Fatal("no frame is lost")
		}
		r.link.send(filler)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := r.DialGuest(ctx, 22); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a dial into a paused guest: %v", err)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
	r.guest.pause(false)
	for range conns {
		if n := <-done; n != 8<<20 {
			t.Errorf("%d bytes came", n)
		}
	}
}

// listen accepts connections on a port of the guest and echoes.
func listen(t testing.TB, g *testGuest, port uint16) {
	t.Helper()
	ln, err := gonet.ListenTCP(g.stack, full(netip.AddrPortFrom(GuestAddress, port)), ipv4.ProtocolNumber)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				io.Copy(c, c)
				c.(*gonet.TCPConn).CloseWrite()
			}()
		}
	}()
	t.Cleanup(func() {
		ln.Shutdown()
		<-done
		ln.Close()
	})
}

func TestDialGuest(t *testing.T) {
	r := newRoom(t, Config{})
	listen(t, r.guest, 8080)
	c, err := r.DialGuest(testContext(t), 8080)
	if err != nil {
		t.Fatal(err)
	}
	if err := roundTrip(c, "from the host"); err != nil {
		t.Fatal(err)
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(c); len(rest) != 0 || err != nil {
		t.Errorf("after the half-close: %q, %v", rest, err)
	}
	c.Close()
	if _, err := r.DialGuest(testContext(t), 8081); !errors.Is(err, ErrRefused) {
		t.Errorf("a port that nobody listens on: %v", err)
	}
	if _, err := r.DialGuest(testContext(t), 0); err == nil {
		t.Error("port 0 was dialled")
	}
	c, err = r.DialGuest(testContext(t), 8080)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	if err := roundTrip(c, "too late"); err == nil {
		t.Error("a connection outlived its network")
	}
	if _, err := r.DialGuest(testContext(t), 8080); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestDialGuestBeforeLink: a dial waits for the hypervisor to be there.
func TestDialGuestBeforeLink(t *testing.T) {
	noLeaks(t)
	n, err := New(Config{Resolver: noResolver{}})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := n.DialGuest(ctx, 22); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no link: %v", err)
	}
	failed := make(chan error)
	go func() {
		_, err := n.DialGuest(context.Background(), 22)
		failed <- err
	}()
	n.Close()
	if err := <-failed; !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed under a dial: %v", err)
	}
}

// TestCloseWithEverythingOpen: Close returns and leaves nothing, whatever is
// under way.
func TestCloseWithEverythingOpen(t *testing.T) {
	r := newRoom(t, Config{})
	r.world.serve(t, public, echo)
	r.world.hang = map[string]bool{"198.51.100.8:80": true}
	for range 5 {
		if err := roundTrip(r.guest.mustDial(public), "open"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go r.guest.dial(ctx, "198.51.100.8:80")
	// One that stays in its handshake: the guest never acknowledges.
	r.guest.onFrame(func(f []byte) bool { return true })
	go r.guest.dial(ctx, public)
	eventually(t, "seven flows are open", func() bool { return r.Stats().TCPFlows == 7 })
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if s := r.Stats(); s.TCPFlows != 0 || s.Connected {
		t.Errorf("after Close %+v", s)
	}
}
