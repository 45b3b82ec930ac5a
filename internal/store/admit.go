package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"sandboxforge/internal/fault"
)

// NewLease is what is known of a lease when it is asked for.
type NewLease struct {
	Kind          Kind // "" is KindInstance
	Backend       string
	ProfileName   string
	WorkspaceRoot string
	WorkspaceID   string
	ExpiresAt     time.Time
	MemoryMiB     int64
	DiskBytes     int64
	CPUs          int
	Accelerator   string
	StartKind     string
	RuntimeName   string
	RemotePath    string
	RuntimeReady  bool
	DockerCommand string
	AutoBootstrap bool
	Config        json.RawMessage
	Spec          json.RawMessage
	Connection    json.RawMessage
	// ParentSnapshot is the snapshot in which the VM is to begin: it must be
	// ready, or the admission fails as in ReadySnapshot, and it stays as long as
	// the lease is active. Its source becomes the lease's ParentInstance.
	ParentSnapshot string
	// Request, if it has an id, learns the new instance's id in the same
	// transaction; if it was taken over meanwhile the admission fails with
	// ErrConflict.
	Request *Request
}

// Limits are what an admission must not exceed. Zero values do not limit.
type Limits struct {
	// MaxInstances caps active leases of every kind but pool and template; it
	// does not limit the admission of one of these.
	MaxInstances int
	// MemoryBudgetMiB and DiskBudgetBytes cap what all active leases, the new
	// one included, are promised together.
	MemoryBudgetMiB int64
	DiskBudgetBytes int64
	// Decide, if set, has the last word, with the sums that no other process
	// can change until the row is in. It runs inside the write transaction:
	// it must return within milliseconds and must not call the store. Its
	// error is returned as it is, and nothing is recorded.
	Decide func(Usage) error
}

// Usage is what active leases hold.
type Usage struct {
	Instances int // those that count against MaxInstances
	Pool      int
	MemoryMiB int64
	DiskBytes int64
	CPUs      int
	Live      []Lease // newest first
}

// Usage sums up the active leases.
func (s *Store) Usage(ctx context.Context) (Usage, error) {
	u, err := usage(ctx, s.reader)
	return u, s.explain(err, "counting instances")
}

// Room is the error with which Admit would refuse one more instance now, nil if
// it would not. Decide is not asked.
func (s *Store) Room(ctx context.Context, lim Limits) error {
	u, err := s.Usage(ctx)
	if err != nil {
		return err
	}
	lim.Decide = nil
	return lim.check(NewLease{Kind: KindInstance}, u)
}

func usage(ctx context.Context, q querier) (Usage, error) {
	live, err := leases(ctx, q, LeaseFilter{})
	if err != nil {
		return Usage{}, err
	}
	u := Usage{Live: live}
	for _, l := range live {
		u.count(l)
	}
	return u, nil
}

func (u *Usage) count(l Lease) {
	switch {
	case l.Kind == KindPool:
		u.Pool++
	case l.Kind.capped():
		u.Instances++
	}
	u.MemoryMiB += l.MemoryMiB
	u.DiskBytes += l.DiskBytes
	u.CPUs += l.CPUs
}

// Admit records a new lease in status creating, held by this process, if the
// limits allow it. Counting and inserting are one immediate transaction: of
// any number of callers in any number of processes, no more are admitted than
// fit. Refusals are INSTANCE_LIMIT_EXCEEDED (naming the live instances),
// INSUFFICIENT_HOST_RESOURCES, INSUFFICIENT_DISK, or what Decide returned.
func (s *Store) Admit(ctx context.Context, n NewLease, lim Limits) (Lease, error) {
	var l Lease
	err := s.write(ctx, "recording a new instance", func(ctx context.Context, tx *sql.Tx) error {
		parent := ""
		if n.ParentSnapshot != "" {
			sn, err := readySnapshot(ctx, tx, n.ParentSnapshot)
			if err != nil {
				return err
			}
			parent = sn.InstanceID
		}
		all, err := s.admitAll(ctx, tx, []NewLease{n}, parent, lim)
		if err != nil {
			return err
		}
		l = all[0]
		if n.Request.tracked() {
			return bindRequest(ctx, tx, n.Request, l.InstanceID, "")
		}
		return nil
	})
	if err != nil {
		return Lease{}, err
	}
	if n.Request.tracked() {
		n.Request.InstanceID = l.InstanceID
	}
	return l, nil
}

// admitAll inserts all leases or none.
func (s *Store) admitAll(ctx context.Context, tx *sql.Tx, all []NewLease, parentInstance string, lim Limits) ([]Lease, error) {
	u, err := usage(ctx, tx)
	if err != nil {
		return nil, err
	}
	if n := len(all); n > 1 && lim.MaxInstances > 0 && u.Instances+n > lim.MaxInstances {
		e := limitExceeded(lim.MaxInstances, u).With("requested", n)
		e.Message += fmt.Sprintf(", and %d more were asked for", n)
		return nil, e
	}
	var admitted []Lease
	for _, n := range all {
		if n.Kind == "" {
			n.Kind = KindInstance
		}
		if err := lim.check(n, u); err != nil {
			return nil, err
		}
		l, err := s.insertLease(ctx, tx, n, parentInstance)
		if err != nil {
			return nil, err
		}
		if err := s.addEvent(ctx, tx, Event{InstanceID: l.InstanceID, What: "admit", To: string(Creating), Outcome: OutcomeOK}); err != nil {
			return nil, err
		}
		admitted = append(admitted, l)
		u.Live = append([]Lease{l}, u.Live...)
		u.count(l)
	}
	return admitted, nil
}

func (s *Store) insertLease(ctx context.Context, tx *sql.Tx, n NewLease, parentInstance string) (Lease, error) {
	now := stamp(s.now())
	request := ""
	if n.Request != nil {
		request = n.Request.ID
	}
	for attempt := 1; ; attempt++ {
		id, err := s.newID("inst_", 8)
		if err != nil {
			return Lease{}, err
		}
		l, err := scanLease(tx.QueryRowContext(ctx, sqlInsertLease, id, n.Kind, n.Backend, BackendName(id),
			n.ProfileName, n.WorkspaceRoot, n.WorkspaceID, s.self.Session, s.self.Session, s.self.PID, s.self.Boot, s.self.Start,
			now, stamp(n.ExpiresAt), now, n.MemoryMiB, n.DiskBytes, n.CPUs, n.Accelerator, n.StartKind, n.RuntimeName,
			n.RemotePath, n.AutoBootstrap, request, text(n.Config), text(n.Spec), n.RuntimeReady, n.DockerCommand,
			n.ParentSnapshot, parentInstance, text(n.Connection)))
		if !isUnique(err) || attempt == idAttempts {
			return l, err
		}
	}
}

// BackendName is the name of an instance's VM.
func BackendName(instanceID string) string {
	return "agent-" + strings.TrimPrefix(instanceID, "inst_")
}

func (lim Limits) check(n NewLease, u Usage) error {
	if n.Kind.capped() && lim.MaxInstances > 0 && u.Instances >= lim.MaxInstances {
		return limitExceeded(lim.MaxInstances, u)
	}
	if want := u.MemoryMiB + n.MemoryMiB; lim.MemoryBudgetMiB > 0 && want > lim.MemoryBudgetMiB {
		e := fault.New(fault.InsufficientHostResources, "the new VM's %d MiB of memory do not fit: %d of %d MiB are promised to live VMs", n.MemoryMiB, u.MemoryMiB, lim.MemoryBudgetMiB).
			Because("live instances, those in error included, hold the memory they were promised until they are gone").
			Next("ask for less with vm.memory_gib").
			With("requested_mib", n.MemoryMiB).With("promised_mib", u.MemoryMiB).With("budget_mib", lim.MemoryBudgetMiB)
		return nameLive(e, u)
	}
	if want := u.DiskBytes + n.DiskBytes; lim.DiskBudgetBytes > 0 && want > lim.DiskBudgetBytes {
		e := fault.New(fault.InsufficientDisk, "the new VM's disk of %s does not fit: %s of %s are promised to live VMs",
			humanize.IBytes(uint64(n.DiskBytes)), humanize.IBytes(uint64(u.DiskBytes)), humanize.IBytes(uint64(lim.DiskBudgetBytes))).
			Because("live instances, those in error included, hold the disk they were promised until they are gone").
			Next("ask for less with vm.disk_gib").
			With("requested_bytes", n.DiskBytes).With("promised_bytes", u.DiskBytes).With("budget_bytes", lim.DiskBudgetBytes)
		return nameLive(e, u)
	}
	if lim.Decide != nil {
		return lim.Decide(u)
	}
	return nil
}

func limitExceeded(most int, u Usage) *fault.Error {
	e := fault.New(fault.InstanceLimitExceeded, "%d of %d instances exist already", u.Instances, most).
		Because("an instance counts until its VM is confirmed gone, also while it is created, removed or in error").
		With("max_instances", most)
	return nameLive(e, u).
		Next("or wait until one expires; the operator can raise MAX_INSTANCES")
}

// nameLive tells a caller which instances stand in the way, those that end
// first first, and what to do about them.
func nameLive(e *fault.Error, u Usage) *fault.Error {
	type live struct {
		InstanceID    string `json:"instance_id"`
		Status        Status `json:"status"`
		ExpiresAt     string `json:"expires_at"`
		WorkspaceRoot string `json:"workspace_root,omitempty"`
		OwnerSession  string `json:"owner_session,omitempty"`
	}
	var all []live
	for i := len(u.Live) - 1; i >= 0; i-- { // oldest first
		l := u.Live[i]
		if !l.Kind.capped() {
			continue
		}
		at := l.ExpiresAt.Format(time.RFC3339)
		all = append(all, live{l.InstanceID, l.Status, at, l.WorkspaceRoot, l.OwnerSession})
		if l.Status.ending() {
			e.Next("%s is being removed already: try again in a few seconds", l.InstanceID)
		} else {
			e.Next("destroy_instance %s if it is no longer needed (%s, expires %s)", l.InstanceID, l.Status, at)
		}
	}
	return e.With("live_instances", all)
}

// bindRequest notes in a pending request what it has made.
func bindRequest(ctx context.Context, tx *sql.Tx, r *Request, instanceID, taskID string) error {
	_, err := scanRequest(tx.QueryRowContext(ctx, sqlBindRequest, r.Scope, r.ID, r.attempt, instanceID, taskID))
	if errors.Is(err, sql.ErrNoRows) {
		return requestConflict(*r)
	}
	return err
}
