package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
)

// ErrRefused: the guest was reached and nothing listens on the port.
var ErrRefused = errors.New("nothing listens on the guest's port")

// Network is one VM's network. Its methods may be called concurrently.
type Network struct {
	config   Config
	counters counters
	link     *link
	stack    *stack.Stack
	rules    atomic.Pointer[Policy]
	denied   denied
	pins     pins
	denials  denials
	flows    flows
	lender   lender
	tcp      *tcp.Forwarder
	udp      udpFlows
	dns      *dnsServer
	patience time.Duration // with no link, see lossPatience

	ctx    context.Context // ends when Close begins
	cancel context.CancelFunc

	mu      sync.Mutex
	closed  bool
	serving bool
	working sync.WaitGroup // everything that was entered
	gone    chan struct{}  // closed when Close is done
}

// New makes a network that nobody is connected to yet: Serve does that. Close
// it, or it keeps its goroutines.
func New(c Config) (*Network, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	n := &Network{config: c, patience: lossPatience, lender: make(lender, maxBigBuffers), gone: make(chan struct{})}
	n.denied = denied{exceptions: c.Exceptions, host: hostAddresses{list: c.Interfaces}}
	n.denials.log = c.Log
	n.rules.Store(&c.Policy)
	n.flows = newFlows()
	n.udp.open = map[udpKey]*udpFlow{}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.link = newLink(c.MTU, &n.counters, n.filtered)
	if n.stack, err = newStack(n.link); err != nil {
		n.cancel()
		return nil, err
	}
	n.tcp = tcp.NewForwarder(n.stack, bufferDefault, maxDials, n.forwardTCP)
	n.dns = newDNSServer(n)
	n.stack.SetTransportProtocolHandler(tcp.ProtocolNumber, n.handleTCP)
	n.stack.SetTransportProtocolHandler(udp.ProtocolNumber, n.handleUDP)
	return n, nil
}

// enter registers work that Close waits for; false means that it is too late.
func (n *Network) enter() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.working.Add(1)
	return true
}

func (n *Network) leave() { n.working.Done() }

const (
	redialFirst = 2 * time.Millisecond
	redialMost  = 250 * time.Millisecond
	// lossPatience is how long there may be no link before that is worth a
	// warning. The end of a machine is the end of its link first, and of Serve's
	// context a moment later.
	lossPatience = 5 * time.Second
)

// Serve keeps the link to the hypervisor: it dials, moves frames, and dials
// again when the connection ends, within milliseconds if that carried frames and
// at most four times a second while none does. dial must honour its context.
// Flows live on while there is no link. A hypervisor that offers its end once
// only fails every further dial, and its guest stays without a network: end ctx
// when the machine has ended, for after a few seconds without a link the log
// gets a warning, and a line when it is back.
//
// Serve returns nil when ctx ends or the network is closed, and an error only if
// the network is being served already.
func (n *Network) Serve(ctx context.Context, dial func(context.Context) (net.Conn, error)) error {
	if !n.enter() {
		return nil
	}
	defer n.leave()
	n.mu.Lock()
	if n.serving {
		n.mu.Unlock()
		return errors.New("network: Serve was called twice")
	}
	n.serving = true
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.serving = false
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.ctx, cancel)()

	pause := redialFirst
	lost, warned := time.Now(), false
	for {
		conn, err := dial(ctx)
		if err == nil {
			n.counters.connects.Add(1)
			if warned {
				n.config.Log.Info("network link is back")
			} else {
				n.config.Log.Debug("network link connected")
			}
			var frames uint64
			frames, err = n.link.run(ctx, conn)
			if frames > 0 {
				pause = redialFirst
			}
			lost, warned = time.Now(), false
		}
		if ctx.Err() != nil {
			return nil
		}
		if !warned && time.Since(lost) >= n.patience {
			warned = true
			n.config.Log.Warn("the guest has no network: there is no link to its hypervisor", "error", err)
		} else {
			n.config.Log.Debug("network link lost", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, redialMost)
	}
}

// DialGuest opens a TCP connection to a port of the guest; the guest sees it
// come from the gateway. It waits for the link if there is none. It fails with
// ErrRefused, with ctx's error when that ends first, and with net.ErrClosed
// after Close. The connection has CloseWrite.
func (n *Network) DialGuest(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("network: %d is not a port", port)
	}
	if !n.enter() {
		return nil, net.ErrClosed
	}
	defer n.leave()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(n.ctx, func() { cancel(net.ErrClosed) })()
	if n.link.await(ctx) != nil {
		return nil, context.Cause(ctx)
	}
	c, err := dialStack(ctx, n.stack, port)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return c, err
}

// Close ends every flow with a reset, the link and the stack, and returns when
// nothing of them is left. Connections from DialGuest fail. Further calls do
// nothing.
func (n *Network) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		<-n.gone
		return nil
	}
	n.closed = true
	n.mu.Unlock()
	defer close(n.gone)

	n.cancel()
	done := make(chan struct{})
	go func() {
		n.working.Wait()
		close(done)
	}()
	for waiting := true; waiting; {
		// A flow may be in its handshake with the guest, which only ends with
		// its endpoint; and it may have made that after the last look.
		for _, e := range n.stack.RegisteredEndpoints() {
			e.Abort()
		}
		select {
		case <-done:
			waiting = false
		case <-time.After(10 * time.Millisecond):
		}
	}
	n.stack.Destroy()
	return nil
}
