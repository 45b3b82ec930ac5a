package fake

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// runRecord is where the owner of a running VM takes orders: a TCP port, the
// one thing that works the same on every system and from every directory.
type runRecord struct {
	Address   string    `json:"address"`
	Started   string    `json:"started"` // tells this start from others
	StartedAt time.Time `json:"started_at"`
}

// order is what another process asks of the owner. The connection is closed by
// the owner when the VM has ended.
type order struct {
	Started string        `json:"started"`
	End     *backend.Exit `json:"end,omitempty"` // nil: only watch
}

type machine struct {
	b      *Backend
	name   string
	o      backend.StartOptions
	record runRecord
	lock   *flock.Flock
	orders net.Listener
	done   chan struct{}
	saving sync.Mutex // held by a save

	mu       sync.Mutex
	ended    bool
	exit     backend.Exit
	stream   net.Conn
	guests   []net.Conn
	watchers []net.Conn
}

var (
	_ backend.Machine     = (*machine)(nil)
	_ backend.BootWatcher = (*machine)(nil)
	_ backend.Saver       = (*machine)(nil)
)

func newMachine(b *Backend, name string, lock *flock.Flock, o backend.StartOptions) (*machine, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	m := &machine{
		b: b, name: name, o: o, lock: lock, orders: l, done: make(chan struct{}),
		record: runRecord{Address: l.Addr().String(), Started: now.Format(time.RFC3339Nano) + l.Addr().String(), StartedAt: now},
	}
	if err := writeJSON(filepath.Join(b.dir, name, runFile), m.record); err != nil {
		l.Close()
		return nil, err
	}
	go m.takeOrders() // ends with the VM
	return m, nil
}

func (m *machine) takeOrders() {
	for {
		c, err := m.orders.Accept()
		if err != nil {
			return
		}
		go func() { // ends with its one order
			c.SetReadDeadline(time.Now().Add(10 * time.Second))
			var o order
			if json.NewDecoder(c).Decode(&o) != nil || o.Started != m.record.Started {
				c.Close()
				return
			}
			m.mu.Lock()
			if m.ended {
				m.mu.Unlock()
				c.Close()
				return
			}
			m.watchers = append(m.watchers, c)
			m.mu.Unlock()
			if o.End != nil {
				m.end(*o.End)
			}
		}()
	}
}

// end ends the VM, once.
func (m *machine) end(e backend.Exit) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return
	}
	m.ended = true
	if e.At.IsZero() {
		e.At = time.Now().UTC()
	}
	m.exit = e
	m.lock.Close() // before anybody is told: they look at it next
	m.orders.Close()
	if m.stream != nil {
		m.stream.Close()
	}
	for _, g := range m.guests {
		g.Close()
	}
	for _, w := range m.watchers {
		w.Close()
	}
	close(m.done)
}

// DialAgent implements backend.Machine.
func (m *machine) DialAgent(ctx context.Context) (io.ReadWriteCloser, error) {
	if err := call(m.b.o.Hooks.Dial, ctx, m.name); err != nil {
		return nil, err
	}
	host, guest := net.Pipe()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return nil, fault.Wrap(backend.ErrNotRunning, fault.InstanceLost, "the VM %s has ended (%s)", m.name, m.exit.Reason)
	}
	if m.stream != nil {
		m.stream.Close()
	}
	m.stream, m.guests = host, append(m.guests, guest)
	serve := m.b.o.Serve
	if serve == nil {
		serve = func(_ string, rw io.ReadWriteCloser) { io.Copy(rw, rw) }
	}
	go func() { // ends with the stream, which end closes at the latest
		defer guest.Close()
		serve(m.name, guest)
	}()
	return host, nil
}

// Done implements backend.Machine.
func (m *machine) Done() <-chan struct{} { return m.done }

// Exit implements backend.Machine.
func (m *machine) Exit() backend.Exit {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.exit
}

// Stop implements backend.Machine.
func (m *machine) Stop(ctx context.Context, grace time.Duration) error {
	if hook := m.b.o.Hooks.Stop; hook != nil && grace > 0 {
		polite, cancel := context.WithTimeout(ctx, grace)
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			hook(polite, m.name)
		}()
		select {
		case <-asked:
		case <-polite.Done():
		case <-m.done:
		}
		cancel()
	}
	m.end(backend.Exit{Reason: backend.ExitStopped})
	return nil
}

// Info implements backend.Machine.
func (m *machine) Info() backend.Info {
	info := backend.Info{Name: m.name, State: backend.Running, Accelerator: "none", Dir: filepath.Join(m.b.dir, m.name), StartedAt: m.record.StartedAt}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		info.State, info.Accelerator, info.StartedAt = backend.Stopped, "", time.Time{}
	}
	return info
}

// Console implements backend.Machine.
func (m *machine) Console(max int) []byte {
	c := m.b.o.Console
	return append([]byte(nil), c[len(c)-min(max, len(c)):]...)
}

// WatchBoot implements backend.BootWatcher.
func (m *machine) WatchBoot(ctx context.Context) error {
	failed := make(chan error, 1)
	if hook := m.b.o.Hooks.Boot; hook != nil {
		go func() {
			if err := hook(ctx, m.name, m.o); err != nil {
				failed <- err
			}
		}()
	}
	select {
	case <-ctx.Done():
		return nil
	case <-m.done:
		return fault.Wrap(backend.ErrBootFailed, fault.RuntimeNotReady, "the VM %s ended: %s", m.name, m.Exit().Reason)
	case err := <-failed:
		return fault.Wrap(errors.Join(backend.ErrBootFailed, err), fault.RuntimeNotReady, "the VM %s does not come up", m.name)
	}
}

// End ends a running VM as if by itself, from whatever process, and returns
// when it has ended. A VM that does not run is ErrNotRunning.
func End(ctx context.Context, dir, name string, e backend.Exit) error { return ask(ctx, dir, name, &e) }

// WaitEnd blocks until a VM has ended; it returns nil at once when none runs.
func WaitEnd(ctx context.Context, dir, name string) error {
	if err := ask(ctx, dir, name, nil); !errors.Is(err, backend.ErrNotRunning) {
		return err
	}
	return nil
}

// ask sends an order to the owner of a VM and waits for the VM's end.
func ask(ctx context.Context, dir, name string, end *backend.Exit) error {
	if err := backend.CheckName(name); err != nil {
		return err
	}
	notRunning := fault.Wrap(backend.ErrNotRunning, fault.InstanceLost, "the VM %s does not run", name)
	var r runRecord
	if readJSON(filepath.Join(dir, name, runFile), &r) != nil {
		return notRunning
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", r.Address)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return notRunning
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if json.NewEncoder(c).Encode(order{Started: r.Started, End: end}) == nil {
		io.Copy(io.Discard, c) // until the owner closes it or is gone
	}
	return context.Cause(ctx)
}
