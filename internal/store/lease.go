package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Kind is what a lease is for.
type Kind string

// The kinds. All hold the memory and disk they were promised.
const (
	// KindInstance is a VM that somebody asked for. Only these count against
	// the cap of instances.
	KindInstance Kind = "instance"
	// KindPool is a VM that waits to become an instance, see Claim.
	KindPool Kind = "pool"
	// KindTemplate is a VM that is made into a template, or that tries one out.
	KindTemplate Kind = "template"
)

// capped: leases of this kind count against the cap of instances.
func (k Kind) capped() bool { return k != KindPool && k != KindTemplate }

// Lease is one VM's claim to exist, as recorded.
type Lease struct {
	InstanceID string // inst_ and 8 hex digits
	Kind       Kind
	Status     Status
	// Generation rises with each change of status, holder or deadline.
	Generation int64

	Backend             string
	BackendInstanceName string // agent- and the instance's 8 hex digits
	ProfileName         string
	WorkspaceRoot       string // on the host
	WorkspaceID         string

	// OwnerSession is the session that asked for the lease.
	OwnerSession string
	// Holder is the process that made the latest move.
	Holder Owner

	CreatedAt  time.Time
	ExpiresAt  time.Time
	LastUsedAt time.Time
	EndedAt    time.Time // zero unless Status.Terminal
	EndReason  string
	Error      json.RawMessage // {error_code, message, details}, or nil

	// Promised to the VM, used or not.
	MemoryMiB int64
	DiskBytes int64
	CPUs      int

	Accelerator   string
	StartKind     string // cold, clone, warm
	SSHPort       int    // 0: none
	RuntimeName   string
	RuntimeReady  bool
	DockerCommand string
	RemotePath    string // where the workspace was synced to in the guest
	AutoBootstrap bool
	RequestID     string // of the call that asked for it, fork_instance's too

	ParentSnapshot string // in which the VM began, "" for none
	ParentInstance string // of which that snapshot was made

	Config  json.RawMessage // the resolved configuration, as it was at creation
	Spec    json.RawMessage
	Timings json.RawMessage

	// Connection is how to reach the instance's services: the variables that
	// its commands get, as a JSON object of strings. Secrets are among them.
	Connection json.RawMessage
}

// Patch changes what is known about an active lease. Nil fields stay.
type Patch struct {
	SSHPort       *int
	RuntimeName   *string
	RuntimeReady  *bool
	DockerCommand *string
	RemotePath    *string
	Accelerator   *string
	StartKind     *string
	Config        json.RawMessage
	Spec          json.RawMessage
	Timings       json.RawMessage
	Connection    json.RawMessage // {} for none
}

// LeaseFilter selects leases. The zero filter selects every active one.
type LeaseFilter struct {
	// Statuses, if any, are the only ones selected, ended ones included.
	Statuses []Status
	// IncludeEnded adds destroyed and expired leases where Statuses is empty.
	IncludeEnded bool
	// ExpiredBy, if set, selects leases whose deadline is at or before it.
	ExpiredBy   time.Time
	Kind        Kind
	WorkspaceID string
	// ParentSnapshot, if set, selects leases that began in that snapshot.
	ParentSnapshot string
	Limit          int // 0: all
}

// Lease returns one lease, of any status. An unknown id is INSTANCE_NOT_FOUND.
func (s *Store) Lease(ctx context.Context, id string) (Lease, error) {
	l, err := leaseByID(ctx, s.reader, id)
	return l, s.explain(err, "reading an instance")
}

// LiveLease returns a lease that can be used: one that is running. Otherwise
// the error says why not: INSTANCE_NOT_FOUND, INSTANCE_TERMINAL when it has
// ended or ends, RUNTIME_NOT_READY while it is created, INSTANCE_LOST in error.
// A running lease whose deadline has passed is INSTANCE_TERMINAL too, although
// nobody has recorded its end yet. In these cases the lease is returned with
// the error.
func (s *Store) LiveLease(ctx context.Context, id string) (Lease, error) {
	l, err := s.Lease(ctx, id)
	if err != nil {
		return l, err
	}
	return l, s.usable(l)
}

func (s *Store) usable(l Lease) error {
	if l.Status != Running {
		return notLive(l)
	}
	if !l.ExpiresAt.After(s.now()) {
		return instanceOverdue(l)
	}
	return nil
}

// LeaseByBackendName returns the lease of a VM. An unknown name is
// INSTANCE_NOT_FOUND.
func (s *Store) LeaseByBackendName(ctx context.Context, name string) (Lease, error) {
	l, err := scanLease(s.reader.QueryRowContext(ctx, sqlLeaseByName, name))
	if errors.Is(err, sql.ErrNoRows) {
		err = instanceNotFound(name)
	}
	return l, s.explain(err, "reading an instance")
}

// Leases returns the leases a filter selects, newest first.
func (s *Store) Leases(ctx context.Context, f LeaseFilter) ([]Lease, error) {
	all, err := leases(ctx, s.reader, f)
	return all, s.explain(err, "listing instances")
}

// Abandoned returns the leases in creating, destroying and expiring whose
// holder is dead: nobody will finish these unless another process takes over.
func (s *Store) Abandoned(ctx context.Context) ([]Lease, error) {
	all, err := s.Leases(ctx, LeaseFilter{Statuses: []Status{Creating, Destroying, Expiring}})
	if err != nil {
		return nil, err
	}
	var dead []Lease
	for _, l := range all {
		if !s.Alive(l.Holder) {
			dead = append(dead, l)
		}
	}
	return dead, nil
}

// Update applies a patch to an active lease and returns it. The generation
// stays: what a patch carries never decides about a lease's life. An ended
// lease is INSTANCE_TERMINAL.
func (s *Store) Update(ctx context.Context, id string, p Patch) (Lease, error) {
	var l Lease
	err := s.write(ctx, "updating an instance", func(ctx context.Context, tx *sql.Tx) (err error) {
		l, err = scanLease(tx.QueryRowContext(ctx, sqlPatchLease, append(p.args(), id)...))
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if l, err = leaseByID(ctx, tx, id); err != nil {
			return err
		}
		return instanceEnded(l)
	})
	return l, err
}

// Touch records that a lease was used now. It writes at most once a second and
// per lease, and does nothing to a lease that has ended.
func (s *Store) Touch(ctx context.Context, id string) error {
	now := s.now()
	var last time.Time
	err := s.reader.QueryRowContext(ctx, sqlLastUsed, id).Scan(unstamp{&last})
	if errors.Is(err, sql.ErrNoRows) {
		err = instanceNotFound(id)
	}
	if err != nil {
		return s.explain(err, "reading an instance")
	}
	if now.Sub(last) < time.Second {
		return nil
	}
	return s.write(ctx, "updating an instance", func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, sqlTouchLease, stamp(now), id)
		return err
	})
}

// Extend moves the deadline of a running lease by up to by, never past
// maxFromNow from now, and never back; added is what was really added. It
// raises the generation, so that an expiry decided on the old deadline loses.
// A lease that is not running, or whose deadline has passed, fails as in
// LiveLease.
func (s *Store) Extend(ctx context.Context, id string, by, maxFromNow time.Duration) (l Lease, added time.Duration, err error) {
	err = s.write(ctx, "extending an instance", func(ctx context.Context, tx *sql.Tx) error {
		old, err := leaseByID(ctx, tx, id)
		if err != nil {
			return err
		}
		if err := s.usable(old); err != nil {
			l = old
			return err
		}
		now := s.now()
		at := old.ExpiresAt.Add(by)
		if latest := now.Add(maxFromNow); at.After(latest) {
			at = latest
		}
		if !at.After(old.ExpiresAt) {
			l = old
			return nil
		}
		if l, err = scanLease(tx.QueryRowContext(ctx, sqlExtendLease, stamp(at), id, old.Generation)); err != nil {
			return err
		}
		added = l.ExpiresAt.Sub(old.ExpiresAt)
		return s.addEvent(ctx, tx, Event{
			InstanceID: id, What: "extend", Outcome: OutcomeOK,
			Detail: encode(map[string]any{"expires_at": l.ExpiresAt, "was": old.ExpiresAt}),
		})
	})
	return l, added, err
}

// RestateDeadline says a running lease's deadline anew after the host's clock
// was set: the moment is the same, its name another. A lease that is not
// running, or whose deadline is not was any more, is ErrConflict.
func (s *Store) RestateDeadline(ctx context.Context, id string, was, now time.Time) (l Lease, err error) {
	err = s.write(ctx, "restating a deadline", func(ctx context.Context, tx *sql.Tx) error {
		var err error
		if l, err = scanLease(tx.QueryRowContext(ctx, sqlRestateDeadline, stamp(now), id, stamp(was))); err != nil {
			if errors.Is(err, sql.ErrNoRows) {
				return ErrConflict
			}
			return err
		}
		return s.addEvent(ctx, tx, Event{
			InstanceID: id, What: "clock_set", Outcome: OutcomeOK,
			Detail: encode(map[string]any{"expires_at": l.ExpiresAt, "was": was}),
		})
	})
	return l, err
}

func leaseByID(ctx context.Context, q querier, id string) (Lease, error) {
	l, err := scanLease(q.QueryRowContext(ctx, sqlLeaseByID, id))
	if errors.Is(err, sql.ErrNoRows) {
		err = instanceNotFound(id)
	}
	return l, err
}

func leases(ctx context.Context, q querier, f LeaseFilter) ([]Lease, error) {
	want := f.Statuses
	if len(want) == 0 {
		for _, st := range Statuses() {
			if st.Active() || f.IncludeEnded {
				want = append(want, st)
			}
		}
	}
	return collect(ctx, q, scanLease, sqlLeases, list(want), f.Kind, f.WorkspaceID, stamp(f.ExpiredBy), limit(f.Limit), f.ParentSnapshot)
}

// list is a set of strings for SQL's json_each.
func list[T ~string](v []T) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("store: strings do not marshal: %v", err))
	}
	return string(b)
}
