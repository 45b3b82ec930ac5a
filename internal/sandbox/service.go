package sandbox

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

// Backends finds the backend that instances are made on. It is implemented by
// the wiring package, so that this one knows no hypervisor.
type Backends interface {
	// Select returns the backend that new instances are made on, after it was
	// probed. The first call may take the time of an accelerator trial. If
	// nothing is usable the fault is BACKEND_UNAVAILABLE and lists, for each
	// backend tried, what is missing and the command that mends it.
	Select(ctx context.Context, p backend.Progress) (Selected, error)
	// ByName returns a backend for VMs that exist already, unprobed.
	ByName(name string) (Selected, error)
	// All returns every backend of this platform, unprobed.
	All() []backend.Backend
}

// Selected is a backend and what a supervisor process needs to make it again.
type Selected struct {
	Backend backend.Backend
	Config  json.RawMessage
	Report  backend.Report // of the probe; zero from ByName
}

// Options are what a Service is made of.
type Options struct {
	Settings *config.Settings
	Backends Backends
	Logger   *slog.Logger
	// Clock and Rand are for tests; nil means the real ones.
	Clock func() time.Time
	Rand  io.Reader
	// BootTimeout bounds a VM's way from start to an answering agent, all
	// boot attempts together; 0 means DefaultBootTimeout.
	BootTimeout time.Duration
}

// DefaultBootTimeout is generous because a busy host under software emulation
// takes minutes for what hardware does in seconds.
const DefaultBootTimeout = 6 * time.Minute

// Service is every operation that a client can ask for. Make one with Open.
type Service struct {
	settings *config.Settings
	backends Backends
	store    *store.Store
	log      *slog.Logger
	now      func() time.Time
	rand     io.Reader
	boot     time.Duration
	instDir  string
	snapDir  string
	runDir   string

	selection selection
	templates templates
	// unprepared: when a backend could not make ready a kind of VM, by what
	// decides the kind.
	unprepared sync.Map // backend.Spec to time.Time
	pool       pool
	sweeping   sweeping
	preparing  keyedLocks // instances whose services are being prepared

	links links

	admitting atomic.Int64 // creates between the insertion of their lease and busy
	busyMu    sync.Mutex
	busyWith  map[string]int // leases and snapshots that this process is moving

	// root ends when the service closes; background work hangs on it.
	root   context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// Open opens the lease database and returns a service on it. It does not need
// a usable backend: what can be done without one still works. Close it.
//
// The background sweeper is started by StartSweeper, not here: a command that
// lives for a second needs none.
func Open(ctx context.Context, o Options) (*Service, error) {
	if err := o.Settings.EnsureHome(); err != nil {
		return nil, err
	}
	if err := claimHome(o.Settings.Home, o.Settings.LeaseDBPath); err != nil {
		return nil, err
	}
	runDir, err := o.Settings.RunDir()
	if err != nil {
		return nil, err
	}
	st, err := store.Open(ctx, store.Options{
		Path:  o.Settings.LeaseDBPath,
		Self:  store.Self(o.Settings.SessionID),
		Clock: o.Clock,
		Rand:  o.Rand,
	})
	if err != nil {
		return nil, err
	}
	s := &Service{
		settings: o.Settings,
		backends: o.Backends,
		store:    st,
		log:      o.Logger,
		now:      o.Clock,
		rand:     o.Rand,
		boot:     o.BootTimeout,
		instDir:  filepath.Join(o.Settings.Home, "instances"),
		snapDir:  filepath.Join(o.Settings.Home, "snapshots"),
		runDir:   runDir,
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.boot <= 0 {
		s.boot = DefaultBootTimeout
	}
	s.root, s.cancel = context.WithCancel(context.Background())
	s.links.s = s
	return s, nil
}

// Close ends the background work, waits for it, and closes the database. VMs,
// tasks and supervisors go on.
func (s *Service) Close() error {
	s.cancel()
	s.wg.Wait()
	s.links.closeAll()
	return s.store.Close()
}

// instanceDir is where an instance's own files are, beside the backend's: the
// supervisor's records and the sync manifests.
func (s *Service) instanceDir(name string) string { return filepath.Join(s.instDir, name) }

// manifestDir is where an instance's sync manifests are.
func (s *Service) manifestDir(l store.Lease) string {
	return filepath.Join(s.instanceDir(l.BackendInstanceName), "sync")
}

// detached is a context for work that must be finished although its caller
// went away; it ends after d.
func detached(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), d)
}

// record writes an event of a tool call that changes something. That it could
// not be written is logged, never the caller's failure.
func (s *Service) record(ctx context.Context, what, instanceID, taskID string, err error, detail any) {
	e := store.Event{InstanceID: instanceID, TaskID: taskID, What: what, Outcome: "ok"}
	if err != nil {
		e.Outcome = string(fault.CodeOf(err))
	}
	if detail != nil {
		if b, jerr := json.Marshal(detail); jerr == nil {
			e.Detail = b
		}
	}
	ctx, cancel := detached(ctx, 5*time.Second)
	defer cancel()
	if rerr := s.store.Record(ctx, e); rerr != nil {
		s.log.Warn("event not recorded", "what", what, "instance", instanceID, "error", rerr)
	}
}

// stamp is a time as clients see it, null where there is none.
func stamp(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	v := isoTime(t)
	return &v
}

func isoTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func orDefault[T any](p *T, def T) T {
	if p == nil {
		return def
	}
	return *p
}
