//go:build unix

package lima

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/sshlink"
)

// machine implements backend.Machine.
type machine struct {
	b       *Backend
	spec    backend.Spec
	o       backend.StartOptions
	first   listed // as it was listed before the start
	owner   *os.File
	starter *starter
	pids    pids
	started time.Time
	done    chan struct{}

	mu       sync.Mutex
	stopping bool
	exit     backend.Exit
	link     *sshlink.Link
}

var (
	_ backend.Machine     = (*machine)(nil)
	_ backend.BootWatcher = (*machine)(nil)
)

func newMachine(b *Backend, s backend.Spec, o backend.StartOptions, l listed, owner *os.File, st *starter, p pids) *machine {
	m := &machine{b: b, spec: s, o: o, first: l, owner: owner, starter: st, pids: p, started: time.Now().UTC(), done: make(chan struct{})}
	go m.watch() // ends with the VM
	return m
}

// watchPause is how late the end of a VM is seen; its processes are children of
// nobody here.
const watchPause = 150 * time.Millisecond

// watch waits for the end of either process, sees to it that the other one ends
// too, and says how it came.
func (m *machine) watch() {
	tick := time.NewTicker(watchPause)
	defer tick.Stop()
	var which string
	for which == "" {
		<-tick.C
		switch {
		case !alive(m.pids.driver):
			which = "hypervisor"
		case !alive(m.pids.hostAgent):
			which = "host agent"
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*undoLimit)
	defer cancel()
	if which == "hypervisor" {
		// The host agent writes down how it ended, and leaves.
		awaitGone(ctx, 3*time.Second, m.pids.hostAgent) //nolint:errcheck // by force below
	}
	e := m.reason(which)
	if alive(m.pids.hostAgent) || alive(m.pids.driver) {
		if err := m.b.stopForced(ctx, m.spec.Name); err != nil {
			m.b.log.Error("the rest of an ended VM does not go", "name", m.spec.Name, "error", err)
		}
		awaitGone(ctx, forceLimit, m.pids.hostAgent, m.pids.driver) //nolint:errcheck // said already
	}
	m.starter.kill()
	e.At = time.Now().UTC()
	m.mu.Lock()
	m.exit = e
	link := m.link
	m.mu.Unlock()
	m.owner.Close()
	close(m.done)
	if link != nil {
		link.Close()
	}
}

var driverEnd = regexp.MustCompile(`Driver stopped due to error: (.{0,200})`)

func (m *machine) reason(which string) backend.Exit {
	m.mu.Lock()
	stopping := m.stopping
	m.mu.Unlock()
	dir := m.b.dir(m.spec.Name)
	if _, err := os.Lstat(filepath.Join(dir, endFile)); stopping || err == nil {
		return backend.Exit{Reason: backend.ExitStopped}
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return backend.Exit{Reason: backend.ExitStopped, Detail: "the VM was deleted"}
	}
	if which == "host agent" {
		return backend.Exit{Reason: backend.ExitHypervisorDied, Detail: "Lima's host agent was killed"}
	}
	said := m.b.file(m.spec.Name, "ha.stderr.log", 64<<10)
	if all := driverEnd.FindAllSubmatch(said, -1); len(all) > 0 {
		detail := printable(string(all[len(all)-1][1]))
		switch {
		case strings.Contains(detail, "signal: killed"):
			return backend.Exit{Reason: backend.ExitHypervisorDied, Detail: "it was killed", Starved: true}
		case strings.Contains(detail, "nil"):
			return backend.Exit{Reason: backend.ExitGuestOff}
		}
		return backend.Exit{Reason: backend.ExitHypervisorDied, Detail: detail}
	}
	if len(said) == 0 {
		// Its instance went before the record did.
		if _, err := os.Lstat(m.b.instanceDir(m.spec.Name)); errors.Is(err, fs.ErrNotExist) {
			return backend.Exit{Reason: backend.ExitStopped, Detail: "the instance was deleted"}
		}
	}
	return backend.Exit{Reason: backend.ExitGuestOff}
}

// file returns the end of a file of an instance.
func (b *Backend) file(name, file string, limit int64) []byte {
	f, err := os.Open(filepath.Join(b.instanceDir(name), file))
	if err != nil {
		return nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return nil
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(0, st.Size()-limit), limit))
	if err != nil {
		return nil
	}
	return data
}

// Done implements backend.Machine.
func (m *machine) Done() <-chan struct{} { return m.done }

func (m *machine) ended() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// Exit implements backend.Machine.
func (m *machine) Exit() backend.Exit {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.exit
}

// DialAgent implements backend.Machine. It waits while the guest boots and the
// agent is installed.
func (m *machine) DialAgent(ctx context.Context) (io.ReadWriteCloser, error) {
	for {
		if m.ended() {
			return nil, fault.Wrap(backend.ErrNotRunning, fault.InstanceLost, "the VM %s has ended (%s)", m.spec.Name, m.Exit().Reason)
		}
		link, err := m.reach()
		if err == nil {
			s, err := link.Dial(ctx)
			if err != nil && m.ended() {
				continue // that is why
			}
			return s, err
		}
		select {
		case <-time.After(pollPause):
		case <-m.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("the VM cannot be reached yet: %w (%w)", context.Cause(ctx), err)
		}
	}
}

// reach is the one way to the guest, from the moment on that Lima knows it.
func (m *machine) reach() (*sshlink.Link, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.link != nil {
		return m.link, nil
	}
	a, key, err := readAccess(filepath.Join(m.b.instanceDir(m.spec.Name), "ssh.config"))
	if err != nil {
		return nil, err
	}
	m.link = sshlink.New(sshlink.Config{
		Address: a.address, User: a.user, Signer: key, Root: m.b.cfg.GuestRoot,
		Progress: m.o.Progress,
		// A guest makes itself host keys at its first boot, and Lima does not
		// tell them. The port is on the loopback of this host and was opened
		// by the host agent; what is shown first is what stays.
		FirstUse: func(key ssh.PublicKey) error {
			return os.WriteFile(filepath.Join(m.b.dir(m.spec.Name), hostKeyFile), ssh.MarshalAuthorizedKey(key), 0o600)
		},
	})
	return m.link, nil
}

// WatchBoot implements backend.BootWatcher. That limactl start fails is no
// failure by itself: the VM may come up all the same.
func (m *machine) WatchBoot(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	go func() { // ends with ctx
		for ctx.Err() == nil {
			if link, err := m.reach(); err == nil {
				failed <- link.WaitFailed(ctx)
				return
			}
			select {
			case <-time.After(pollPause):
			case <-ctx.Done():
			}
		}
	}()
	var err error
	select {
	case <-ctx.Done():
		return nil
	case <-m.done:
		e := m.Exit()
		err = fmt.Errorf("the VM ended: %s %s", e.Reason, e.Detail)
	case err = <-failed:
		if err == nil {
			return nil
		}
	}
	f := fault.Wrap(errors.Join(backend.ErrBootFailed, err), fault.RuntimeNotReady, "the VM %s does not come up", m.spec.Name)
	if cause := fault.From(err); cause.Cause != "" {
		f.Because("%s", cause.Cause)
		f.NextSteps = cause.NextSteps
	}
	return f
}

// Stop implements backend.Machine.
func (m *machine) Stop(ctx context.Context, grace time.Duration) error {
	if m.ended() {
		return nil
	}
	m.mu.Lock()
	m.stopping = true
	m.mu.Unlock()
	if grace > 0 && ctx.Err() == nil {
		// A stop in early boot waits for three minutes: it is given what the
		// caller gives.
		_, err := m.b.run(ctx, grace, nil, "stop", "--tty=false", "--", m.spec.Name)
		if err != nil {
			m.b.log.Debug("limactl stop", "name", m.spec.Name, "error", err)
		} else if awaitGone(ctx, forceLimit, m.pids.hostAgent, m.pids.driver) == nil {
			<-m.done
			return nil
		}
	}
	forced, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	m.starter.kill()
	if err := m.b.stopForced(forced, m.spec.Name); err != nil {
		return err
	}
	select {
	case <-m.done:
		return nil
	case <-forced.Done():
		return fault.New(fault.BackendCommandFailed, "the VM %s does not end", m.spec.Name).
			Because("its processes %d and %d are still there", m.pids.hostAgent, m.pids.driver)
	}
}

// Info implements backend.Machine.
func (m *machine) Info() backend.Info {
	i := backend.Info{Name: m.spec.Name, State: backend.Stopped, Dir: m.b.dir(m.spec.Name), DiskUsed: allocated(m.b.instanceDir(m.spec.Name))}
	if m.ended() {
		return i
	}
	i.State, i.PID, i.StartedAt = backend.Running, m.pids.driver, m.started
	i.Accelerator = cmp.Or(m.o.Accel, m.b.accelerator(m.spec, m.first))
	if a, _, err := readAccess(filepath.Join(m.b.instanceDir(m.spec.Name), "ssh.config")); err == nil {
		fmt.Sscanf(a.address[strings.LastIndexByte(a.address, ':')+1:], "%d", &i.SSHPort) //nolint:errcheck // it was checked
	}
	return i
}

// Console implements backend.Machine: whichever serial console the guest uses.
func (m *machine) Console(limit int) []byte {
	for _, f := range []string{"serial.log", "serialp.log", "serialv.log"} {
		if out := m.b.file(m.spec.Name, f, int64(max(limit, 0))); len(out) > 0 {
			return out
		}
	}
	return nil
}
