package supervisor

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// NewBackend makes a Backend from the configuration of a BackendRef. It must
// not block and start nothing.
type NewBackend func(config json.RawMessage) (backend.Backend, error)

var registry struct {
	sync.Mutex
	m map[string]NewBackend
}

// RegisterBackend makes a backend known by name to supervisors of this
// executable. Call it from an init function or first thing in main, before
// Main; a second registration of a name panics.
func RegisterBackend(name string, f NewBackend) {
	registry.Lock()
	defer registry.Unlock()
	if _, dup := registry.m[name]; dup {
		panic("supervisor: backend " + name + " registered twice")
	}
	if registry.m == nil {
		registry.m = map[string]NewBackend{}
	}
	registry.m[name] = f
}

func openBackend(r BackendRef) (backend.Backend, error) {
	registry.Lock()
	f := registry.m[r.Name]
	known := slices.Sorted(maps.Keys(registry.m))
	registry.Unlock()
	if f == nil {
		return nil, fault.New(fault.BackendUnavailable, "this build has no backend %q (it has: %s)", r.Name, strings.Join(known, ", ")).
			Because("the instance was made by another build").
			Next("use the build that made the instance, or destroy the instance")
	}
	b, err := f(r.Config)
	if err != nil {
		return nil, fault.Wrap(err, fault.BackendUnavailable, "the backend %q cannot be opened", r.Name)
	}
	return b, nil
}
