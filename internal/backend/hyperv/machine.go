package hyperv

import (
	"context"
	"fmt"
	"net/netip"

	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// machine is a running VM. Its end is found by asking Hyper-V.
type machine struct {
	b     *Backend
	r     record
	keys  keys
	began time.Time
	link  Link
	done  chan struct{}
	look  chan struct{} // asks for a look now

	mu       sync.Mutex
	exit     backend.Exit
	ended    bool
	stopping bool
	console  []byte
	said     string     // the last line of the console
	good     netip.Addr // where the guest was reached last
	dialled  netip.Addr // where somebody answered last
	turn     int        // of the candidates
	reached  bool
}

var (
	_ backend.Machine     = (*machine)(nil)
	_ backend.BootWatcher = (*machine)(nil)
)

func newMachine(b *Backend, r record, k keys, began time.Time) *machine {
	m := &machine{b: b, r: r, keys: k, began: began, done: make(chan struct{}), look: make(chan struct{}, 1)}
	m.link = m.newLink()
	m.note("Hyper-V runs the machine %s (%s)", r.Machine, r.ID)
	go m.watch() // ends with the VM
	return m
}

// maxConsole bounds what is kept of the boot.
const maxConsole = 32 << 10

// note adds a line to what Console shows.
func (m *machine) note(format string, args ...any) {
	line := fmt.Sprintf("[%8.3f] ", time.Since(m.began).Seconds()) + fmt.Sprintf(format, args...) + "\n"
	m.mu.Lock()
	defer m.mu.Unlock()
	m.console = append(m.console, line...)
	if extra := len(m.console) - maxConsole; extra > 0 {
		m.console = append(m.console[:0], m.console[extra:]...)
	}
}

// Console implements backend.Machine: what is known of the boot. Hyper-V gives
// the guest's own console to no one that does not sit in front of a window.
func (m *machine) Console(max int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	from := len(m.console) - min(max, len(m.console))
	return append([]byte(nil), m.console[from:]...)
}

// watch asks until the machine does not run any more.
func (m *machine) watch() {
	t := time.NewTicker(m.b.c.Poll)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-m.look:
		case <-m.done:
			return
		}
		info, found, err := m.b.find(context.Background(), m.r.ID)
		switch {
		case err != nil:
			m.b.c.Logger.Warn("Hyper-V does not answer", "vm", m.r.Spec.Name, "error", err)
			continue // it says nothing of the VM
		case found && info.runs():
			continue
		}
		m.over(m.why(info, found))
		return
	}
}

// lookNow has watch look without waiting for its time.
func (m *machine) lookNow() {
	select {
	case m.look <- struct{}{}:
	default:
	}
}

// why says how the machine came to its end.
func (m *machine) why(info machineInfo, found bool) backend.Exit {
	e := backend.Exit{At: time.Now().UTC(), Reason: backend.ExitStopped}
	m.mu.Lock()
	stopping := m.stopping
	m.mu.Unlock()
	if stopping {
		return e
	}
	dir := m.b.dir(m.r.Spec.Name)
	if _, err := os.Lstat(filepath.Join(dir, endingFile)); err == nil || !found {
		if _, derr := os.Lstat(filepath.Join(dir, recordFile)); derr == nil && err != nil {
			e.Detail = "the machine was removed in Hyper-V"
		}
		return e
	}
	if why := m.logged(); why != "" {
		e.Reason, e.Detail = backend.ExitHypervisorDied, why
		return e
	}
	e.Reason = backend.ExitGuestOff
	e.Detail = "Hyper-V shows the machine as " + info.State + " and has logged no error"
	return e
}

// logged is what Hyper-V has logged as an error about the machine since it was
// started. A guest that powers off is logged as information.
func (m *machine) logged() string {
	var l struct {
		Events []struct {
			ID      int64     `json:"id"`
			At      time.Time `json:"at"`
			Message string    `json:"message"`
		} `json:"events"`
		Failure string `json:"failure"`
	}
	if err := m.b.call(context.Background(), "events", m.b.queryLimit, map[string]any{"id": m.r.ID}, &l); err != nil {
		m.b.c.Logger.Warn("the event log of Hyper-V could not be read", "vm", m.r.Spec.Name, "error", err)
		return ""
	}
	for _, ev := range l.Events {
		if ev.At.After(m.began.Add(-time.Second)) {
			return fmt.Sprintf("event %d: %.300s", ev.ID, ev.Message)
		}
	}
	return ""
}

// over ends the Machine, once.
func (m *machine) over(e backend.Exit) {
	m.mu.Lock()
	if m.ended {
		m.mu.Unlock()
		return
	}
	m.ended, m.exit = true, e
	m.mu.Unlock()
	close(m.done)
	m.link.Close()
}

// Done implements backend.Machine.
func (m *machine) Done() <-chan struct{} { return m.done }

// Exit implements backend.Machine.
func (m *machine) Exit() backend.Exit {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.exit
}

// Info implements backend.Machine.
func (m *machine) Info() backend.Info {
	info := backend.Info{Name: m.r.Spec.Name, State: backend.Running, Dir: m.b.dir(m.r.Spec.Name), StartedAt: m.began.Truncate(time.Second)}
	info.DiskUsed = diskUsed(info.Dir)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		info.State, info.StartedAt = backend.Stopped, time.Time{}
	}
	return info
}

func (m *machine) notRunning() error {
	return fault.Wrap(backend.ErrNotRunning, fault.InstanceLost, "the VM %s has ended (%s)", m.r.Spec.Name, m.Exit().Reason)
}

// stopLimit bounds a stop beyond its grace.
const stopLimit = 2 * time.Minute

// Stop implements backend.Machine.
func (m *machine) Stop(ctx context.Context, grace time.Duration) error {
	select {
	case <-m.done:
		return nil
	default:
	}
	m.mu.Lock()
	m.stopping = true
	m.mu.Unlock()
	id := map[string]any{"id": m.r.ID, "token": m.r.Token, "name": m.r.Machine}
	if grace > 0 && ctx.Err() == nil {
		polite := map[string]any{"id": m.r.ID, "token": m.r.Token, "name": m.r.Machine, "polite": true}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		if err := m.b.whole(ctx, "stop", polite, nil); err == nil {
			m.lookNow()
			select {
			case <-m.done:
				return nil
			case <-timer.C:
			case <-ctx.Done():
			}
		}
	}
	force, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if err := m.b.turnOff(force, id); err != nil {
		if gone := m.b.unlessGone(force, m.r.ID, err); gone != nil {
			return gone
		}
	}
	m.over(backend.Exit{At: time.Now().UTC(), Reason: backend.ExitStopped})
	m.lookNow()
	return nil
}

// WatchBoot implements backend.BootWatcher: a guest that is not reached within
// Config.BootTimeout will not be.
func (m *machine) WatchBoot(ctx context.Context) error {
	failed := func(why string) error {
		return fault.Wrap(backend.ErrBootFailed, fault.RuntimeNotReady, "the guest of the VM %s does not come up", m.r.Spec.Name).Because("%s", why).
			Next("look at its console in Hyper-V Manager, and check that the base disk is a generic cloud image with cloud-init, sshd and the hv_netvsc driver")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hopeless := make(chan error, 1)
	go func() { hopeless <- m.link.WaitFailed(ctx) }() // ends with ctx
	timer := time.NewTimer(time.Until(m.began.Add(m.b.c.BootTimeout)))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.done:
			e := m.Exit()
			return failed("the machine ended: " + strings.TrimSpace(e.Reason+" "+e.Detail))
		case err := <-hopeless:
			if ctx.Err() != nil {
				return nil
			}
			return failed(fault.From(err).Error())
		case <-timer.C:
			if m.wasReached() || ctx.Err() != nil {
				continue // the agent's affair now
			}
			return failed(fmt.Sprintf("it was not reached over ssh within %s: %s", m.b.c.BootTimeout, m.lastNote()))
		}
	}
}

// wasReached: there was a stream to the agent once.
func (m *machine) wasReached() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reached
}

// lastNote is the last line of what is known of the boot.
func (m *machine) lastNote() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.said
}
