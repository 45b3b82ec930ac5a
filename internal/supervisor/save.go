package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/guest"
	"sandboxforge/internal/supervisor/supervisorv1"
)

// saveDrain is how long a save waits for guest RPCs that are under way. Longer
// ones are cut; those that follow a process come back by themselves.
const saveDrain = 300 * time.Millisecond

// StageSaving is Status.Stage while a save writes. A save goes on when its caller
// is gone; once the stage is another, nothing of it is written any more.
const StageSaving = "saving"

// gate holds guest RPCs back while the VM is saved.
type gate struct {
	mu     sync.Mutex
	active int
	shut   chan struct{} // nil while open; closed when it opens again
	idle   chan struct{} // closed when active falls to 0 while shut
}

// enter waits until the gate is open; leave must follow.
func (g *gate) enter(ctx context.Context) error {
	for {
		g.mu.Lock()
		shut := g.shut
		if shut == nil {
			g.active++
			g.mu.Unlock()
			return nil
		}
		g.mu.Unlock()
		select {
		case <-shut:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.active--
	if g.active == 0 && g.shut != nil {
		close(g.idle)
	}
}

// close shuts the gate; the channel is closed when nobody is inside.
func (g *gate) close() (idle <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut, g.idle = make(chan struct{}), make(chan struct{})
	if g.active == 0 {
		close(g.idle)
	}
	return g.idle
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.shut)
	g.shut = nil
}

// wrap lets requests through the gate.
func (g *gate) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := g.enter(r.Context()); err != nil {
			return // the caller is gone
		}
		defer g.leave()
		h.ServeHTTP(w, r)
	})
}

// save saves the VM's state. It is not cut short when its caller leaves: the
// state is then complete, and nobody's.
func (s *supervisor) save(ctx context.Context, dir string, end bool) (backend.SavedState, error) {
	s.saving.Lock()
	defer s.saving.Unlock()
	if err := context.Cause(ctx); err != nil {
		return backend.SavedState{}, err
	}
	st, _ := s.board.get()
	m := s.current()
	switch {
	case st.State == StateBooting:
		return backend.SavedState{}, fault.New(fault.RuntimeNotReady, "the VM is not up yet: %s", st.Message).Next("wait until it is ready")
	case st.State != StateReady || m == nil:
		return backend.SavedState{}, fault.Wrap(ErrEnded, fault.InstanceTerminal, "the VM is being taken down")
	}
	saver, ok := m.(backend.Saver)
	if !ok {
		return backend.SavedState{}, fault.Wrap(backend.ErrUnsupported, fault.UnsupportedByBackend, "the state of a running VM cannot be saved by this backend")
	}
	ctx = context.WithoutCancel(ctx)
	idle := s.gate.close()
	defer s.gate.open()
	select {
	case <-idle:
	case <-time.After(saveDrain):
	case <-s.stopped:
	}
	select {
	case <-s.stopped:
		return backend.SavedState{}, fault.Wrap(ErrEnded, fault.InstanceTerminal, "the VM is being taken down")
	default:
	}
	// A clone arms its own deadline; until then the saved one must not end it.
	if l := s.currentLink(); l != nil && l.current() != nil {
		dctx, cancel := context.WithTimeout(ctx, s.opts.Tuning.ConnectTimeout)
		err := guest.NewClient(l).SetDeadline(dctx, 0)
		cancel()
		if err != nil {
			s.log.Warn("the guest's own deadline could not be disarmed", "error", err)
		}
	}
	s.stopLink()
	s.board.stage(StageSaving, "saving the VM's state to "+dir)
	saved, err := saver.Save(ctx, dir, backend.SaveOptions{End: end})
	if err == nil {
		s.log.Info("state saved", "dir", dir, "pause", saved.Pause, "memory_bytes", saved.MemoryBytes)
	}
	select {
	case <-m.Done():
		return saved, err
	case <-s.stopped:
		return saved, err
	default:
	}
	s.board.stage("ready", "the VM is ready")
	s.relink(m)
	return saved, err
}

// awaitSave returns when no save is under way: one whose VM has ended still
// writes, and its caller must get the answer.
func (s *supervisor) awaitSave() {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.log.Debug("no save is under way")
}

// relink opens the agent link of a VM that goes on, and waits a while for it:
// whoever was held back at the gate should find it.
func (s *supervisor) relink(m backend.Machine) {
	s.runLink(m, time.Now(), true)
	l := s.currentLink()
	select {
	case <-l.ready:
	case <-m.Done():
	case <-s.stopped:
	case <-time.After(s.opts.Tuning.ConnectTimeout):
		s.log.Warn("the agent does not answer after a save")
	}
}

// Save implements the RPC.
func (v *service) Save(ctx context.Context, r *supervisorv1.SaveRequest) (*supervisorv1.SaveResponse, error) {
	saved, err := v.s.save(ctx, r.Dir, r.End)
	if err != nil {
		code := connect.CodeUnknown
		switch {
		case errors.Is(err, backend.ErrUnsupported):
			code = connect.CodeUnimplemented
		case errors.Is(err, ErrEnded), errors.Is(err, backend.ErrNotRunning):
			code = connect.CodeFailedPrecondition
		case fault.Is(err, fault.InvalidArgument):
			code = connect.CodeInvalidArgument
		case fault.Is(err, fault.InsufficientDisk):
			code = connect.CodeResourceExhausted
		}
		f := fault.From(err)
		msg := f.Error()
		if f.Cause != "" {
			msg += ": " + f.Cause
		}
		return nil, connect.NewError(code, errors.New(msg))
	}
	b, err := json.Marshal(saved)
	if err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return &supervisorv1.SaveResponse{StateJson: string(b)}, nil
}

// Save saves the VM's whole state into dir, an absolute path of the host that
// must not exist, and returns when it is complete; see backend.Saver. With end
// the VM ends. A VM that cannot be saved is UNSUPPORTED_BY_BACKEND, one that is
// being taken down ErrEnded. When ctx ends, the save goes on, and the caller
// removes what it finds at dir later.
func (c *Client) Save(ctx context.Context, dir string, end bool) (backend.SavedState, error) {
	r, err := c.rpc.Save(ctx, &supervisorv1.SaveRequest{Dir: dir, End: end})
	if err != nil {
		var ce *connect.Error
		if ctx.Err() == nil && errors.As(err, &ce) {
			switch ce.Code() {
			case connect.CodeUnimplemented:
				return backend.SavedState{}, fault.Wrap(backend.ErrUnsupported, fault.UnsupportedByBackend, "the VM's state cannot be saved: %s", ce.Message())
			case connect.CodeResourceExhausted:
				return backend.SavedState{}, fault.New(fault.InsufficientDisk, "the VM's state cannot be saved: %s", ce.Message()).
					Next("free space on the host's disk")
			}
		}
		return backend.SavedState{}, c.fail(ctx, err, "the VM's state cannot be saved")
	}
	var s backend.SavedState
	if err := json.Unmarshal([]byte(r.StateJson), &s); err != nil {
		return s, fault.Wrap(err, fault.Internal, "the supervisor's answer to a save cannot be read")
	}
	return s, nil
}
