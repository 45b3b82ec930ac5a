package supervisor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
)

// consolePeriod is how often the console is looked at during a boot.
const consolePeriod = 250 * time.Millisecond

// fatalMarks on the console of a guest that boots end the attempt at once.
var fatalMarks = [][]byte{
	[]byte("Kernel panic - not syncing"),
	[]byte("sandboxforge-init: fatal:"),
}

// bootError says why a boot did not succeed. retry: another try may do.
type bootError struct {
	detail  string
	console string
	retry   bool
	code    fault.Code // of the shortage of the host that it is due to, if any
}

func (e *bootError) Error() string { return e.detail }

// boot runs the VM until its agent answered and the guest is in shape, with as
// many tries as the options allow, the last in the backend's safest way. The
// VM that runs when boot returns, if any, is s.machine, also after an error.
func (s *supervisor) boot(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, s.opts.BootTimeout, &bootError{
		detail: fmt.Sprintf("the guest agent did not answer within %s", s.opts.BootTimeout)})
	defer cancel()
	began := time.Now()
	s.bootNote = ""
	for n := 1; ; n++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		last := n == s.opts.BootAttempts
		s.board.update(func(st *Status) { st.BootAttempts = n })
		err := s.attempt(ctx, n, last)
		if err == nil {
			s.board.timing("total", time.Since(began))
			return nil
		}
		if cause := context.Cause(ctx); cause != nil {
			be := &bootError{detail: cause.Error()}
			errors.As(cause, &be)
			if m := s.current(); m != nil {
				be.console = printableText(m.Console(4<<10), 4<<10)
			}
			return be
		}
		var be *bootError
		if !errors.As(err, &be) || !be.retry || last {
			if be != nil && n > 1 {
				be.detail = fmt.Sprintf("attempt %d of %d: %s", n, s.opts.BootAttempts, be.detail)
			}
			return err
		}
		s.log.Warn("boot attempt failed", "attempt", n, "of", s.opts.BootAttempts, "error", err, "console", be.console)
		// Watchers see the newest state only, so it tells what came before.
		note := fmt.Sprintf(" (boot attempt %d of %d failed: %s)", n, s.opts.BootAttempts, be.detail)
		s.board.stage("retrying", "trying again"+note)
		if err := s.halt(ctx, 0); err != nil {
			return &bootError{detail: fmt.Sprintf("a VM that did not boot could not be stopped: %v", err)}
		}
		s.bootNote = note
	}
}

// starvedOf is the code of a fault that says what the host has too little of.
func starvedOf(err error) fault.Code {
	if c := fault.CodeOf(err); c == fault.InsufficientDisk || c == fault.InsufficientHostResources {
		return c
	}
	return ""
}

// explained is an error's text with its probable cause: the hypervisor's own
// words say more than that it ended.
func explained(err error) string {
	var f *fault.Error
	if errors.As(err, &f) && f.Cause != "" {
		return f.Cause + ": " + err.Error()
	}
	return err.Error()
}

// attempt starts the VM once and waits until it is ready.
func (s *supervisor) attempt(ctx context.Context, n int, last bool) error {
	began := time.Now()
	s.board.stage("starting", "starting the VM"+s.bootNote)
	m, err := s.start(ctx, backend.StartOptions{
		Accel:    s.opts.Accel,
		Cautious: last && n > 1,
		Progress: func(stage, message string) { s.board.stage("starting", message) },
	})
	if err != nil {
		return &bootError{detail: "the hypervisor could not start the VM: " + explained(err), code: starvedOf(err)}
	}
	s.board.machineInfo(m.Info())
	s.board.timing("start", time.Since(began))
	s.board.stage("booting", "waiting for the guest agent"+s.bootNote)
	s.log.Info("VM started", "attempt", n, "pid", m.Info().PID, "accelerator", m.Info().Accelerator)
	linkErr := s.runLink(m, began, false)
	watch, stopWatch := watchBoot(ctx, m)
	defer stopWatch()

	tick := time.NewTicker(consolePeriod)
	defer tick.Stop()
	var seen []byte
	quiet := time.Now() // since when the console says nothing new
	fail := func(format string, args ...any) *bootError {
		return &bootError{detail: fmt.Sprintf(format, args...), console: printableText(m.Console(4<<10), 4<<10), retry: true}
	}
	over := func() error {
		e := m.Exit()
		be := fail("the VM ended during its boot: %s", joinDetail(e.Reason, e.Detail))
		if e.Starved {
			be.code = fault.InsufficientHostResources
		}
		return be
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.link.ready:
			s.board.update(func(st *Status) { st.LastConsole = lastLine(m.Console(4 << 10)) })
			return nil
		case err := <-linkErr:
			return fail("the guest cannot be prepared: %v", err)
		case <-m.Done():
			return over()
		case err := <-watch:
			select {
			case <-m.Done(): // which the backend may see first
				return over()
			default:
			}
			return fail("%v", err)
		case <-tick.C:
		}
		console := m.Console(4 << 10)
		if bytes.Equal(console, seen) {
			if watch == nil && !last && time.Since(quiet) > s.opts.Tuning.StallTimeout {
				return fail("the guest hangs: its console has been silent for %s and its agent does not answer", s.opts.Tuning.StallTimeout)
			}
			continue
		}
		seen, quiet = console, time.Now()
		s.board.update(func(st *Status) { st.LastConsole = lastLine(console) })
		for _, mark := range fatalMarks {
			if i := bytes.Index(console, mark); i >= 0 {
				line, _, _ := bytes.Cut(console[i:], []byte("\n"))
				return fail("the guest panicked: %s", printable(line, 200))
			}
		}
	}
}

// watchBoot lets a backend that can see it say that a boot will not succeed.
// The channel is nil for others: then a silent console has to do.
func watchBoot(ctx context.Context, m backend.Machine) (failed <-chan error, stop func()) {
	w, ok := m.(backend.BootWatcher)
	if !ok {
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	c := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := w.WatchBoot(ctx); err != nil {
			c <- err
		}
	})
	return c, func() { cancel(); wg.Wait() }
}

// start is Backend.Start, patient with a hypervisor process of an earlier
// supervisor that is still going down.
func (s *supervisor) start(ctx context.Context, o backend.StartOptions) (backend.Machine, error) {
	for began := time.Now(); ; {
		m, err := s.backend.Start(ctx, s.opts.Spec.Name, o)
		if err == nil {
			s.setMachine(m)
			if err := s.wire(m); err != nil {
				return nil, err // boot's caller halts the machine
			}
			return m, nil
		}
		if !errors.Is(err, backend.ErrRunning) || time.Since(began) > 10*time.Second {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// prepare brings a guest whose agent just answered into shape. The identity
// and the disk's size are part of what was promised; the deadline is a
// backstop, so its failure is only logged.
func (s *supervisor) prepare(ctx context.Context, c *guest.Client, began time.Time) error {
	t := time.Now()
	id := guest.Identity{Hostname: s.opts.Spec.Hostname, Time: s.clock.Now(), Entropy: entropy()}
	// The boot id of a clone is its template's, which says nothing new.
	named := make(chan error, 1)
	clone := s.opts.Spec.From != "" && s.booting()
	if clone {
		id.MachineID = s.machineID()
		go func() { named <- c.SetIdentity(ctx, id) }() // ends with ctx
	}
	info, err := c.Info(ctx)
	if err != nil {
		return err
	}
	bootID := printable([]byte(info.BootID), 64)
	first := false
	s.board.update(func(st *Status) {
		first = st.BootID == "" || st.BootID != bootID || st.State != StateReady
		st.BootID, st.AgentVersion = bootID, printable([]byte(info.AgentVersion), 64)
		if st.State == StateBooting {
			st.Stage, st.Message = "preparing", "the guest agent answers; setting identity and disk"+s.bootNote
			st.Timings["agent"] = t.Sub(began).Milliseconds()
		}
	})
	if first {
		if !clone {
			if info.MachineID == "" || s.opts.Spec.From != "" {
				id.MachineID = s.machineID()
			}
			named <- c.SetIdentity(ctx, id)
		}
		if err := <-named; err != nil {
			return err
		}
		s.board.timing("identity", time.Since(t))
		if clone {
			if info, err = s.awaitDisk(ctx, c, info); err != nil {
				return err
			}
		}
		if info.RootDeviceLarger {
			began := time.Now()
			if _, err := c.GrowRoot(ctx); err != nil {
				return fmt.Errorf("grow the root file system: %w", err)
			}
			s.board.timing("grow", time.Since(began))
		}
		s.board.update(func(st *Status) { st.Timings["prepare"] = time.Since(t).Milliseconds() })
	}
	if clone {
		// Nobody needs to wait for it: the supervisor has the deadline.
		s.wg.Go(func() {
			ctx, cancel := context.WithTimeout(s.ctx, s.opts.Tuning.PingTimeout)
			defer cancel()
			s.armBackstop(ctx, c)
		})
		return nil
	}
	s.armBackstop(ctx, c)
	return nil
}

// diskPatience bounds the wait of awaitDisk.
const diskPatience = 20 * time.Second

// awaitDisk waits until the kernel of a clone has noticed how large its disk
// is: it was grown while the guest ran, and is no larger than before until then.
func (s *supervisor) awaitDisk(ctx context.Context, c *guest.Client, info guest.Info) (guest.Info, error) {
	want := uint64(max(s.opts.Spec.DiskBytes, 0))
	for until := time.Now().Add(diskPatience); info.RootDeviceBytes != 0 && info.RootDeviceBytes < want; {
		if time.Now().After(until) {
			return info, fmt.Errorf("the guest sees a disk of %d bytes where it has %d", info.RootDeviceBytes, want)
		}
		select {
		case <-ctx.Done():
			return info, context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
		var err error
		if info, err = c.Info(ctx); err != nil {
			return info, err
		}
	}
	return info, nil
}

// booting says whether the VM was never ready yet.
func (s *supervisor) booting() bool {
	st, _ := s.board.get()
	return st.State == StateBooting
}

// machineID is for a guest without one, or with that of the VM it is a clone
// of: it stays the same for the instance's life.
func (s *supervisor) machineID() string {
	sum := sha256.Sum256([]byte("sandboxforge machine-id " + s.opts.InstanceID))
	return hex.EncodeToString(sum[:16])
}

// armBackstop tells the guest when to power itself off should nobody else do.
func (s *supervisor) armBackstop(ctx context.Context, c *guest.Client) {
	_, left := s.deadline.get()
	left = max(left, 0) + s.opts.Tuning.BackstopGrace
	if err := c.SetDeadline(ctx, left); err != nil && ctx.Err() == nil {
		s.log.Warn("the guest's own deadline could not be set", "error", err)
	}
}

func joinDetail(reason, detail string) string {
	if detail == "" {
		return reason
	}
	return reason + ": " + detail
}
