package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
)

// supervisor owns one VM from before its start until after its end.
type supervisor struct {
	opts    Options // with defaults
	log     *slog.Logger
	clock   clock
	backend backend.Backend

	board    *board
	deadline *deadline
	wg       sync.WaitGroup // goroutines that end when the VM is to stop

	ctx    context.Context // ends when the VM is to stop
	cancel context.CancelFunc

	// bootNote says how the last attempt failed; set while no link runs.
	bootNote string

	stopMu  sync.Mutex
	stop    *stopRequest  // the first one wins
	stopped chan struct{} // closed when stop is set

	ended chan struct{} // closed when the VM is gone and its end recorded

	gate   gate
	saving sync.Mutex // held by a save

	mu       sync.Mutex
	machine  backend.Machine // the VM that runs, nil if none
	unwire   func()          // ends machine's network and waits for it
	link     *agentLink      // of machine
	linkStop func()          // ends the link and waits for it
}

// stopRequest is why the VM is taken down.
type stopRequest struct {
	reason string
	detail string
	grace  time.Duration
}

func newSupervisor(o Options, b backend.Backend, c clock, log *slog.Logger) (*supervisor, error) {
	o = o.withDefaults()
	d, err := newDeadline(c, o.Deadline)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &supervisor{
		ctx: ctx, cancel: cancel,
		opts: o, log: log, clock: c, backend: b,
		deadline: d,
		stopped:  make(chan struct{}),
		ended:    make(chan struct{}),
		board: newBoard(Status{
			State: StateBooting, PID: os.Getpid(), StartedAt: c.Now(),
			BootAttemptsMax: o.BootAttempts, Timings: map[string]int64{},
			Stage: "starting", Message: "the supervisor has started",
		}),
	}, nil
}

// run is the VM's life. It returns when the VM is gone and its end recorded.
func (s *supervisor) run() *End {
	s.expire() // a supervisor may start late
	s.wg.Go(s.watchDeadline)
	err := s.boot(s.ctx)
	if err == nil {
		s.board.update(func(st *Status) {
			st.State, st.ReadyAt = StateReady, s.clock.Now()
			st.Stage, st.Message = "ready", "the VM is ready"+s.bootNote
		})
		s.log.Info("VM is ready")
		select {
		case <-s.stopped:
		case <-s.current().Done():
			e := s.current().Exit()
			s.requestStop(stopRequest{reason: e.Reason, detail: e.Detail})
		}
	} else {
		s.requestStop(stopRequest{reason: ReasonBootFailed, detail: err.Error()})
	}
	s.wg.Wait()
	end := s.teardown(err)
	s.deadline.alarm.Close()
	return end
}

// watchDeadline asks for the end when the deadline has passed.
func (s *supervisor) watchDeadline() {
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.deadline.alarm.C():
		}
		s.expire()
	}
}

// expire and setDeadline decide under one lock, so that a deadline is either
// moved or kept, never both.
func (s *supervisor) expire() {
	s.stopMu.Lock()
	defer s.stopMu.Unlock()
	if s.stop != nil || !s.deadline.passed() {
		return // overtaken by an extension
	}
	s.stopLocked(stopRequest{reason: ReasonExpired, detail: "the lease's deadline passed", grace: s.opts.Tuning.ExpiryGrace})
}

// setDeadline moves the deadline to a moment that has not passed.
func (s *supervisor) setDeadline(t time.Time) error {
	s.stopMu.Lock()
	defer s.stopMu.Unlock()
	if s.stop != nil || s.deadline.passed() {
		return fault.Wrap(ErrEnded, fault.InstanceTerminal, "the deadline cannot be moved: the VM is being taken down")
	}
	if now := s.clock.Now(); !t.After(now) {
		return fault.New(fault.InvalidArgument, "the deadline %s has passed (it is %s)", t.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339)).
			Next("to end the VM now, stop it")
	}
	s.deadline.set(t)
	s.log.Info("deadline set", "deadline", t)
	s.board.update(func(*Status) {})
	ctx := s.ctx
	s.wg.Go(func() {
		l := s.currentLink()
		if l == nil {
			return // told when the link comes up
		}
		ctx, cancel := context.WithTimeout(ctx, s.opts.Tuning.ConnectTimeout)
		defer cancel()
		if l.current() != nil {
			s.armBackstop(ctx, guest.NewClient(l))
		}
	})
	return nil
}

// requestStop asks for the VM's end; the first reason stays.
func (s *supervisor) requestStop(r stopRequest) {
	s.stopMu.Lock()
	defer s.stopMu.Unlock()
	s.stopLocked(r)
}

func (s *supervisor) stopLocked(r stopRequest) {
	if s.stop != nil {
		return
	}
	s.stop = &r
	s.log.Info("stopping", "reason", r.reason, "detail", r.detail, "grace", r.grace)
	s.board.update(func(st *Status) {
		st.State, st.EndReason, st.EndDetail = StateStopping, r.reason, r.detail
		st.Stage, st.Message = "stopping", "taking the VM down: "+r.reason
	})
	close(s.stopped)
	s.cancel()
}

// teardown ends the VM that may still run and records the end.
func (s *supervisor) teardown(bootErr error) *End {
	req := *s.stop
	end := &End{InstanceID: s.opts.InstanceID, Name: s.opts.Spec.Name, Reason: req.reason, Detail: req.detail}
	var be *bootError
	if errors.As(bootErr, &be) && req.reason == ReasonBootFailed {
		end.Console, end.Code = be.console, be.code
	}
	if m := s.current(); m != nil {
		select {
		case <-m.Done():
			end.TasksMissing = "the VM ended before its tasks could be read"
			if req.reason != ReasonDestroyed && end.Console == "" {
				end.Console = printableText(m.Console(4<<10), 4<<10)
			}
		default:
			end.Tasks, end.TasksMissing = s.collectTails()
		}
		if err := s.halt(context.Background(), req.grace); err != nil {
			s.log.Error("the VM could not be stopped", "error", err)
			end.Detail = joinDetail(end.Detail, fmt.Sprintf("its end could not be confirmed: %v", err))
		}
	}
	end.At = s.clock.Now().UTC()
	if err := writeEnd(s.opts.Dir, end); err != nil {
		s.log.Error("the end could not be recorded", "error", err)
	}
	s.board.update(func(st *Status) {
		st.State, st.EndDetail, st.Stage, st.Message = StateEnded, end.Detail, "ended", "the VM has ended: "+joinDetail(end.Reason, end.Detail)
		st.VMPID = 0
	})
	s.log.Info("ended", "reason", end.Reason, "detail", end.Detail, "tasks", len(end.Tasks))
	close(s.ended)
	return end
}

// halt ends the current machine and its link. Without error there is none
// afterwards.
func (s *supervisor) halt(ctx context.Context, grace time.Duration) error {
	m := s.current()
	if m == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, grace+s.opts.Tuning.StopTimeout)
	defer cancel()
	if grace > 0 {
		s.askPowerOff(ctx)
	}
	s.stopLink()
	err := m.Stop(ctx, grace)
	if err != nil {
		s.log.Warn("stop failed, trying by force", "error", err)
		fctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opts.Tuning.StopTimeout)
		err = m.Stop(fctx, 0)
		cancel()
	}
	if err == nil {
		select {
		case <-m.Done():
		case <-time.After(s.opts.Tuning.StopTimeout):
			err = errors.New("the hypervisor said that the VM has stopped, but it goes on")
		}
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	unwire := s.unwire
	s.machine, s.link, s.unwire = nil, nil, nil
	s.mu.Unlock()
	if unwire != nil {
		unwire()
	}
	return nil
}

func (s *supervisor) current() backend.Machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machine
}

func (s *supervisor) setMachine(m backend.Machine) {
	s.mu.Lock()
	s.machine = m
	s.mu.Unlock()
}

func (s *supervisor) currentLink() *agentLink {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link
}

// runLink starts the link to m's agent. The channel gets the error with which
// the guest turned out unusable, if it does; one that is proven never does.
func (s *supervisor) runLink(m backend.Machine, began time.Time, proven bool) <-chan error {
	ctx, cancel := context.WithCancel(context.Background())
	l := &agentLink{
		dial: m.DialAgent, tuning: s.opts.Tuning, log: s.log, proven: proven,
		prepare: func(ctx context.Context, c *guest.Client) error { return s.prepare(ctx, c, began) },
		onChange: func(up bool) {
			s.board.update(func(st *Status) {
				st.AgentConnected = up
				if up {
					st.AgentConnections++
				}
			})
		},
		ready: make(chan struct{}),
	}
	failed := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.run(ctx); err != nil && ctx.Err() == nil {
			failed <- err
		}
	})
	s.mu.Lock()
	s.link, s.linkStop = l, func() { cancel(); wg.Wait() }
	s.mu.Unlock()
	return failed
}

func (s *supervisor) stopLink() {
	s.mu.Lock()
	stop := s.linkStop
	s.linkStop = nil
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
}
