package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"sandboxforge/internal/fault"
)

// The other way to save a VM, where the memory of its process cannot be read
// (another uid, a strict ptrace scope, a hardened kernel): QEMU sends it, as to
// another host. Under KVM the guest runs meanwhile, and pages that are written
// are sent again; when little is left, QEMU stops the guest and waits (pause-
// before-switchover). Then the disk gets its new layer and the devices' state is
// written, as in the other way, and the last pages follow. Only the memory is
// taken from the stream: the state is the same either way.
//
// An emulated guest is stopped first. QEMU's emulator tells the pages that were
// written from the others by marks in its address cache, and a mark that is
// being set while the pages are listed is lost: half of the memories that were
// sent of running guests lacked some writes (see DECISIONS).

const (
	// switchDowntime is what QEMU may leave for the time that the guest stands
	// still, by its own estimate.
	switchDowntime = 50 * time.Millisecond
	// maxPasses is how often QEMU may go through the memory. A guest that writes
	// faster than it is copied is then stopped.
	maxPasses = 8
	// transferPoll is how often QEMU is asked how far it is; that the guest
	// stands still is an event.
	transferPoll = 10 * time.Millisecond
)

// transferLimit bounds a transfer, generously: 34 MiB a second are enough.
func transferLimit(mib int64) time.Duration {
	return saveLimit + time.Duration(mib/1024)*30*time.Second
}

// transfer saves memory, devices and disk with the help of QEMU's migration,
// and lets the guest go on. ctx is the caller's: until the guest stands still,
// its end ends the save.
func (s *save) transfer(caller context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(caller), transferLimit(s.record.Spec.MemoryMiB))
	defer cancel()
	s.o.Progress.Report("save", "saving the VM's state: QEMU sends its memory")
	in, err := s.receive(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			in.cancel()
		}
		if gone := in.stop(); err == nil && gone != nil {
			err = gone
			if s.o.End { // it was to end with the save, and stands still
				err = errors.Join(err, s.goOn(ctx))
			}
		}
	}()
	stopped := s.v.accel.name == "tcg"
	if stopped {
		s.paused = time.Now()
		if err := s.do(ctx, "stop", nil); err != nil {
			return err
		}
	}
	defer func() {
		if err != nil {
			s.endTransfer(ctx)
		}
		if !s.o.End || err != nil {
			err = errors.Join(err, s.goOn(ctx))
		}
		s.pause = time.Since(s.paused)
	}()
	if err := s.beginTransfer(ctx, in.path); err != nil {
		return err
	}
	if err := s.untilSwitch(caller, ctx, in, stopped); err != nil {
		return err
	}
	if err := s.switchDisk(ctx); err != nil {
		return err
	}
	if err := s.saveDevices(ctx); err != nil {
		return err
	}
	if f := s.v.b.frozen; f != nil {
		f(s.v)
	}
	if err := s.do(ctx, "migrate-continue", map[string]any{"state": "pre-switchover"}); err != nil {
		return err
	}
	for {
		m, err := s.migration(ctx)
		if err != nil {
			return err
		}
		switch m.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return s.transferFailed(in, m)
		}
		if err := pauseBriefly(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// migration is what QEMU says of a transfer.
type migration struct {
	Status string `json:"status"`
	Error  string `json:"error-desc"`
	RAM    struct {
		Passes int64 `json:"dirty-sync-count"`
	} `json:"ram"`
}

func (s *save) migration(ctx context.Context) (m migration, err error) {
	if err := s.v.control.Do(ctx, "query-migrate", nil, &m); err != nil {
		return m, fault.Wrap(err, fault.BackendCommandFailed, "QEMU does not say how far the save of the VM %s is", s.v.name)
	}
	return m, nil
}

// transferFailed prefers our end's error, of which QEMU sees only that nobody
// listens.
func (s *save) transferFailed(in *receiver, m migration) error {
	select {
	case err := <-in.done:
		in.done <- err
		if err != nil {
			return err
		}
	default:
	}
	return fault.New(fault.BackendCommandFailed, "QEMU could not send the memory of the VM %s (%s): %s", s.v.name, m.Status, m.Error)
}

func (s *save) beginTransfer(ctx context.Context, socket string) error {
	type capability struct {
		Capability string `json:"capability"`
		State      bool   `json:"state"`
	}
	if err := s.do(ctx, "migrate-set-capabilities", map[string]any{"capabilities": []capability{
		{"x-ignore-shared", false}, {"pause-before-switchover", true},
	}}); err != nil {
		return err
	}
	if err := s.do(ctx, "migrate-set-parameters", map[string]any{
		"max-bandwidth": int64(1) << 40, "downtime-limit": switchDowntime.Milliseconds(),
	}); err != nil {
		return err
	}
	select { // a stop of before
	case <-s.v.halted:
	default:
	}
	return s.do(ctx, "migrate", map[string]any{"uri": "unix:" + socket})
}

// endTransfer makes QEMU give up one that may be under way: while it is, the
// guest must not be told to go on.
func (s *save) endTransfer(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	_ = s.v.control.Do(ctx, "migrate_cancel", nil, nil) // none: nothing to do
	for {
		m, err := s.migration(ctx)
		if err != nil {
			return
		}
		switch m.Status {
		case "", "none", "completed", "failed", "cancelled":
			return
		}
		if pauseBriefly(ctx, transferPoll) != nil {
			return
		}
	}
}

// untilSwitch waits until the guest stands still, as it may already, and QEMU
// waits for us.
func (s *save) untilSwitch(caller, ctx context.Context, in *receiver, forced bool) error {
	var (
		stopped time.Time    // by QEMU's word
		ran     = time.Now() // no stop before that, if it is QEMU's
		poll    = transferPoll
	)
	for {
		asked := time.Now()
		m, err := s.migration(ctx)
		if err != nil {
			return err
		}
		switch m.Status {
		case "pre-switchover":
			if forced {
				return nil
			}
			select {
			case stopped = <-s.v.halted:
			default: // had already, or lost
			}
			s.paused = ran
			// QEMU's clock is the host's, which may be set meanwhile.
			now := time.Now()
			if at := now.Add(-now.Round(0).Sub(stopped)); !stopped.IsZero() && at.After(ran) && !at.After(now) {
				s.paused = at
			}
			return nil
		case "failed", "cancelled", "completed":
			return s.transferFailed(in, m)
		}
		if stopped.IsZero() && !forced {
			ran = asked
			if err := context.Cause(caller); err != nil {
				return err
			}
			if m.RAM.Passes > maxPasses {
				forced, s.paused = true, time.Now()
				if err := s.do(ctx, "stop", nil); err != nil {
					return err
				}
			}
		}
		timer := time.NewTimer(poll)
		select {
		case stopped = <-s.v.halted:
			poll = time.Millisecond
		case <-timer.C:
		case <-s.v.done:
			return s.v.notRunning()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

// pauseBriefly waits for a time, or for the end of ctx, which is its error.
func pauseBriefly(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// saveSocket is where QEMU sends the memory of a VM to.
func (b *Backend) saveSocket(name string) string {
	return filepath.Join(b.c.RunDir, name+".save")
}

// receiver takes a guest's memory in.
type receiver struct {
	path   string
	listen *net.UnixListener
	cancel func()
	done   chan error // room for one: the outcome
}

// receive makes the memory file of the state and waits for QEMU to fill it.
func (s *save) receive(ctx context.Context) (*receiver, error) {
	size := s.record.Spec.MemoryMiB << 20
	to, err := os.OpenFile(filepath.Join(s.dir, stateMemory), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := to.Truncate(size); err != nil {
		to.Close()
		return nil, err
	}
	r := &receiver{path: s.v.b.saveSocket(s.v.name), done: make(chan error, 1)}
	if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		to.Close()
		return nil, err
	}
	if r.listen, err = net.ListenUnix("unix", &net.UnixAddr{Name: r.path, Net: "unix"}); err == nil {
		if err = os.Chmod(r.path, 0o600); err != nil {
			r.listen.Close()
		}
	}
	if err != nil {
		to.Close()
		return nil, fault.Wrap(err, fault.BackendCommandFailed, "cannot make the socket that the memory of the VM %s is sent to", s.v.name)
	}
	ctx, r.cancel = context.WithCancel(ctx)
	go func() {
		defer to.Close()
		stop := context.AfterFunc(ctx, func() { r.listen.Close() })
		defer stop()
		c, err := r.listen.Accept()
		r.listen.Close()
		if err != nil {
			r.done <- fmt.Errorf("QEMU did not connect: %w", err)
			return
		}
		defer c.Close()
		defer context.AfterFunc(ctx, func() { c.Close() })()
		if err = readRAM(c, to, size); err == nil {
			_, err = io.Copy(io.Discard, c) // the devices, which we have
		}
		r.done <- err
	}()
	return r, nil
}

// stop ends the receiver and returns what became of the memory, which is whole
// only if QEMU said before that all is sent.
func (r *receiver) stop() error {
	// After QEMU's word the end of the stream is on its way.
	t := time.NewTimer(10 * time.Second)
	defer t.Stop()
	select {
	case err := <-r.done:
		r.cancel()
		return err
	case <-t.C:
	}
	r.cancel()
	return errors.Join(<-r.done, errors.New("the stream of the memory has no end"))
}
