package network

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/link/ethernet"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// testContext ends before the test binary gives up, with everything it knows.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits for a state that announces itself by nothing but itself.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came to be that %s", what)
		}
	}
}

// noLeaks fails the test if goroutines of this package or of its stacks remain.
func noLeaks(t testing.TB) {
	t.Cleanup(func() {
		buf := make([]byte, 4<<20)
		var left []string
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			left = nil
			for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
				if !strings.Contains(g, "testing.") && (strings.Contains(g, "gvisor.dev/") || strings.Contains(g, "internal/network.")) {
					left = append(left, g)
				}
			}
			if len(left) == 0 {
				return
			}
		}
		t.Errorf("%d goroutines are left:\n%s", len(left), strings.Join(left[:min(len(left), 5)], "\n\n"))
	})
}

// testGuest is the other end of the link: what QEMU and a guest's kernel are.
// It listens on a socket and has a stack with ARP.
type testGuest struct {
	t      testing.TB
	path   string
	ln     net.Listener
	stack  *stack.Stack
	wire   *channel.Endpoint
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	conn   net.Conn
	paused bool
	wake   *sync.Cond
	// raw gets frames before the stack does; true takes them away.
	raw   func(frame []byte) bool
	pings uint16
}

func newGuest(t testing.TB, mtu int) *testGuest {
	g := &testGuest{t: t, path: filepath.Join(t.TempDir(), "net")}
	g.wake = sync.NewCond(&g.mu)
	g.ctx, g.cancel = context.WithCancel(context.Background())
	var err error
	if g.ln, err = net.Listen("unix", g.path); err != nil {
		t.Fatal(err)
	}
	g.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, arp.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol, icmp.NewProtocol4},
	})
	g.wire = channel.New(1024, uint32(mtu+ethernetHeader), tcpip.LinkAddress(guestMAC[:]))
	must := func(err tcpip.Error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(g.stack.CreateNIC(nic, ethernet.New(g.wire)))
	must(g.stack.AddProtocolAddress(nic, tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: stackAddress(GuestAddress), PrefixLen: Prefix.Bits()},
	}, stack.AddressProperties{}))
	all, _ := tcpip.NewSubnet(tcpip.AddrFrom4([4]byte{}), tcpip.MaskFromBytes(make([]byte, 4)))
	local, _ := tcpip.NewSubnet(stackAddress(Prefix.Addr()), tcpip.MaskFromBytes([]byte{255, 255, 255, 0}))
	g.stack.SetRouteTable([]tcpip.Route{
		{Destination: local, NIC: nic},
		{Destination: all, NIC: nic, Gateway: stackAddress(GatewayAddress)},
	})
	g.wg.Go(g.accept)
	g.wg.Go(g.transmit)
	t.Cleanup(g.close)
	return g
}

func (g *testGuest) close() {
	g.cancel()
	g.ln.Close()
	g.pause(false)
	g.disconnect()
	g.wg.Wait()
	g.stack.Destroy()
	g.wire.Close()
}

// disconnect drops the present connection; the network dials anew.
func (g *testGuest) disconnect() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conn != nil {
		g.conn.Close()
	}
}

// pause stops reading from the socket, as a stopped VM does.
func (g *testGuest) pause(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paused = on
	g.wake.Broadcast()
}

func (g *testGuest) onFrame(f func([]byte) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.raw = f
}

func (g *testGuest) accept() {
	for {
		c, err := g.ln.Accept()
		if err != nil {
			return
		}
		g.mu.Lock()
		g.conn = c
		g.mu.Unlock()
		g.receive(c)
		c.Close()
	}
}

func (g *testGuest) receive(c net.Conn) {
	in := bufio.NewReader(c)
	for {
		g.mu.Lock()
		for g.paused {
			g.wake.Wait()
		}
		g.mu.Unlock()
		f, err := readFrame(in)
		if err != nil {
			return
		}
		g.mu.Lock()
		raw := g.raw
		g.mu.Unlock()
		if raw != nil && raw(f) {
			continue
		}
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(f)})
		g.wire.InjectInbound(0, pkt)
		pkt.DecRef()
	}
}

// readFrame reads one frame as the hypervisor gets it.
func readFrame(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	f := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(r, f)
	return f, err
}

func (g *testGuest) transmit() {
	for {
		pkt := g.wire.ReadContext(g.ctx)
		if pkt == nil {
			return
		}
		v := pkt.ToView()
		pkt.DecRef()
		g.send(v.AsSlice())
		v.Release()
	}
}

// send puts one frame on the wire, if there is one.
func (g *testGuest) send(frame []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conn != nil {
		g.conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
	}
}

func (g *testGuest) dialNetwork(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", g.path)
}

func full(a netip.AddrPort) tcpip.FullAddress {
	return tcpip.FullAddress{NIC: nic, Addr: stackAddress(a.Addr()), Port: a.Port()}
}

// dial connects from the guest.
func (g *testGuest) dial(ctx context.Context, to string) (*gonet.TCPConn, error) {
	return gonet.DialContextTCP(ctx, g.stack, full(netip.MustParseAddrPort(to)), ipv4.ProtocolNumber)
}

func (g *testGuest) mustDial(to string) *gonet.TCPConn {
	g.t.Helper()
	c, err := g.dial(testContext(g.t), to)
	if err != nil {
		g.t.Fatalf("dial %s: %v", to, err)
	}
	g.t.Cleanup(func() { c.Close() })
	return c
}

// dialUDP binds a socket of the guest and connects it.
func (g *testGuest) dialUDP(to string) *gonet.UDPConn {
	g.t.Helper()
	a := full(netip.MustParseAddrPort(to))
	c, err := gonet.DialUDP(g.stack, nil, &a, ipv4.ProtocolNumber)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { c.Close() })
	c.SetWriteDeadline(time.Now().Add(20 * time.Second))
	return c
}

// world maps the addresses that guests dial to sockets of this test. What is
// not in it refuses.
type world struct {
	mu    sync.Mutex
	hosts map[string]string
	asked []string
	// hang makes a dial wait for its context.
	hang map[string]bool
}

func (w *world) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	w.asked = append(w.asked, network+" "+address)
	to, hang := w.hosts[network+" "+address], w.hang[address]
	w.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if to == "" {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	return (&net.Dialer{}).DialContext(ctx, network, to)
}

func (w *world) set(network, address, to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hosts == nil {
		w.hosts = map[string]string{}
	}
	w.hosts[network+" "+address] = to
}

func (w *world) dialled() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.asked...)
}

// serve accepts connections at address of the world.
func (w *world) serve(t testing.TB, address string, handle func(*net.TCPConn)) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				defer context.AfterFunc(ctx, func() { c.Close() })()
				handle(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		ln.Close()
		wg.Wait()
	})
	w.set("tcp", address, ln.Addr().String())
}

func echo(c *net.TCPConn) {
	io.Copy(c, c)
	c.CloseWrite()
}

// noResolver fails every look-up.
type noResolver struct{}

func (noResolver) Exchange(context.Context, []byte) ([]byte, error) {
	return nil, errors.New("no resolver in this test")
}

// room is a network with a guest on it.
type room struct {
	*Network
	guest *testGuest
	world *world
}

// newRoom connects a network of config to a guest. Dialer, Resolver and
// Interfaces default to ones that never leave the test.
func newRoom(t testing.TB, config Config) room {
	t.Helper()
	noLeaks(t)
	r := room{world: &world{}}
	if config.Dialer == nil {
		config.Dialer = r.world
	}
	if config.Resolver == nil {
		config.Resolver = noResolver{}
	}
	if config.Interfaces == nil {
		config.Interfaces = func() ([]netip.Prefix, error) { return []netip.Prefix{netip.MustParsePrefix("203.0.113.77/28")}, nil }
	}
	if config.Log == nil {
		config.Log = slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if config.MTU == 0 {
		config.MTU = DefaultMTU
	}
	r.guest = newGuest(t, config.MTU)
	var err error
	if r.Network, err = New(config); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, r.guest.dialNetwork) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		r.Close()
	})
	if err := r.link.await(testContext(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the guest has the link too", func() bool {
		r.guest.mu.Lock()
		defer r.guest.mu.Unlock()
		return r.guest.conn != nil
	})
	return r
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

// roundTrip sends text and wants it back.
func roundTrip(c net.Conn, text string) error {
	if _, err := c.Write([]byte(text)); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != text {
		return fmt.Errorf("got %q, want %q", got, text)
	}
	return nil
}
