package backendtest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"sandboxforge/internal/backend"
)

// Harness is a backend under test, with an empty state of its own, and what a
// test must do behind its back. The factory's cleanup deletes what is left.
type Harness struct {
	Backend backend.Backend
	// Config is what Main's open makes an equal Backend from.
	Config any
	// Open is the same open, for a second Backend value in this process.
	Open func(config json.RawMessage) (backend.Backend, error)
	// StateDir is where VMs lie, or "" if that is no directory.
	StateDir string
	// Spec returns a specification that this backend can honour.
	Spec func(name string) backend.Spec
	// HalfMake leaves what a Create leaves that was killed in the middle.
	HalfMake func(t *testing.T, name string)
	// Kill ends the hypervisor of a running VM as kill -9 would, without
	// waiting.
	Kill func(t *testing.T, info backend.Info)
	// WaitGone blocks until a hypervisor process seen in info is gone.
	WaitGone func(ctx context.Context, info backend.Info) error
	// WaitAgent blocks until the guest's agent answers on the stream, and
	// returns something that is this guest's alone, its boot id say.
	WaitAgent func(ctx context.Context, stream io.ReadWriteCloser) (string, error)
	// Remember puts a text into the memory of the guest, where a saved state
	// finds it, and Recall reads it back. Nil: not looked at.
	Remember func(ctx context.Context, stream io.ReadWriteCloser, text string) error
	Recall   func(ctx context.Context, stream io.ReadWriteCloser) (string, error)
	// BootDeadline is how long a guest may take to its agent's answer.
	BootDeadline time.Duration
	// Polite: the test's guest powers off when asked to.
	Polite bool
}

// again is another Backend on the same state.
func (h *Harness) again(t *testing.T) backend.Backend {
	t.Helper()
	b, err := h.Open(h.config(t))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (h *Harness) config(t *testing.T) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(h.Config)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// helperEnv carries an order to a re-executed test binary.
const helperEnv = "SANDBOXFORGE_BACKENDTEST_ORDER"

type order struct {
	Config json.RawMessage `json:"config"`
	Op     string          `json:"op"` // create, start, delete, save
	Spec   backend.Spec    `json:"spec"`
	Dir    string          `json:"dir,omitempty"` // save: of the state
}

type answer struct {
	Kind  string       `json:"kind"`  // of the error, see kindOf; empty: success
	Error string       `json:"error"` // its text
	Info  backend.Info `json:"info"`
}

// Main runs the tests, or, in a process that a test started, one operation on
// a Backend that open makes.
func Main(m *testing.M, open func(config json.RawMessage) (backend.Backend, error)) {
	o := os.Getenv(helperEnv)
	if o == "" {
		os.Exit(m.Run())
	}
	json.NewEncoder(os.Stdout).Encode(obey(o, open))
	// A started VM belongs to this process: stay until the test lets go.
	io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func obey(text string, open func(json.RawMessage) (backend.Backend, error)) (a answer) {
	fail := func(err error) answer { return answer{Kind: kindOf(err), Error: err.Error()} }
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return fail(err)
	}
	b, err := open(o.Config)
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	switch o.Op {
	case "create":
		if err := b.Create(ctx, o.Spec); err != nil {
			return fail(err)
		}
	case "start":
		m, err := b.Start(ctx, o.Spec.Name, backend.StartOptions{})
		if err != nil {
			return fail(err)
		}
		a.Info = m.Info()
	case "save": // answers when the VM runs, and again when it is saved
		m, err := b.Start(ctx, o.Spec.Name, backend.StartOptions{})
		if err != nil {
			return fail(err)
		}
		a.Info = m.Info()
		json.NewEncoder(os.Stdout).Encode(a)
		s, ok := m.(backend.Saver)
		if !ok {
			return fail(backend.ErrUnsupported)
		}
		if _, err := s.Save(ctx, o.Dir, backend.SaveOptions{}); err != nil {
			return fail(err)
		}
	case "delete":
		if err := b.Delete(ctx, o.Spec.Name); err != nil {
			return fail(err)
		}
	default:
		return fail(errors.New("unknown operation " + o.Op))
	}
	return a
}

// kinds are the error kinds of the contract.
var kinds = map[string]error{
	"not found": backend.ErrNotFound, "running": backend.ErrRunning, "not running": backend.ErrNotRunning,
	"unsupported": backend.ErrUnsupported, "exists": backend.ErrExists,
	"state unfit": backend.ErrStateUnfit, "state in use": backend.ErrStateInUse,
}

func kindOf(err error) string {
	for name, k := range kinds {
		if errors.Is(err, k) {
			return name
		}
	}
	return "other"
}
