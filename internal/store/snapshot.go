package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/dustin/go-humanize"

	"sandboxforge/internal/fault"
)

// SnapshotKind is what a snapshot is for.
type SnapshotKind string

// The kinds.
const (
	// SnapshotKept stays until somebody deletes it.
	SnapshotKept SnapshotKind = "snapshot"
	// SnapshotFork goes when no instance that began in it is left.
	SnapshotFork SnapshotKind = "fork"
)

// SnapshotStatus is where a snapshot is in its life:
//
//	creating → ready → deleting → (no row)
//	creating → deleting
//	deleting → ready, if the removal was refused and changed nothing
//
// The row is written before the directory and goes after it, with one exception:
// a disk on which others build stays, in a directory without a row, until the
// last of them is gone. A row that is not ready may have no directory, or half
// of one.
type SnapshotStatus string

// The statuses.
const (
	SnapshotCreating SnapshotStatus = "creating"
	SnapshotReady    SnapshotStatus = "ready"
	SnapshotDeleting SnapshotStatus = "deleting"
)

// snapshotMoves is the whole law. The move from deleting to itself hands the
// removal to another process.
var snapshotMoves = map[SnapshotStatus][]SnapshotStatus{
	SnapshotCreating: {SnapshotReady, SnapshotDeleting},
	SnapshotReady:    {SnapshotDeleting},
	SnapshotDeleting: {SnapshotDeleting, SnapshotReady},
}

// Snapshot is the saved state of an instance, as recorded.
type Snapshot struct {
	SnapshotID  string // snap_ and 8 hex digits
	Kind        SnapshotKind
	Status      SnapshotStatus
	Generation  int64 // rises with each change of status or holder
	Name        string
	Description string

	InstanceID     string // the source, which it outlives
	ParentSnapshot string // in which the source began, "" for none
	Backend        string
	Dir            string

	OwnerSession string
	Holder       Owner // the process that made the latest move
	CreatedAt    time.Time
	RequestID    string

	ReservedBytes int64 // that it may need, until they are known
	MemoryBytes   int64 // on the host's disk, once ready
	DiskBytes     int64
	Pause         time.Duration // how long the source stood still
	RunningTasks  int           // of the source, when it was saved

	// What an instance that begins here takes over from the source.
	ProfileName   string
	WorkspaceRoot string
	WorkspaceID   string
	VMMemoryMiB   int64
	VMDiskBytes   int64
	VMCPUs        int
	Accelerator   string
	RuntimeName   string
	RuntimeReady  bool
	DockerCommand string
	RemotePath    string
	Config        json.RawMessage
	Spec          json.RawMessage
	Connection    json.RawMessage
}

// Bytes is what the snapshot takes, or may take, of the host's disk.
func (s Snapshot) Bytes() int64 {
	if s.Status == SnapshotCreating {
		return s.ReservedBytes
	}
	return s.MemoryBytes + s.DiskBytes
}

// NewSnapshot is what is known of a snapshot when it is asked for.
type NewSnapshot struct {
	Kind        SnapshotKind
	Name        string
	Description string
	InstanceID  string
	// Dir names the directory that belongs to an id.
	Dir func(id string) string
	// ReservedBytes is what the state may take of the host's disk.
	ReservedBytes int64
	// Request, if it has an id, learns the snapshot's id in the same
	// transaction, and forgets it if the snapshot never becomes ready.
	Request *Request
}

// SnapshotLimits are what a new snapshot must not exceed. Zero values do not
// limit.
type SnapshotLimits struct {
	// CapBytes caps what all snapshots, the new one included, take or may take.
	CapBytes int64
	// FreeBytes caps what this snapshot and those that are being made may take:
	// what the host's disk has left for them.
	FreeBytes int64
}

// BeginSnapshot records a snapshot in status creating, held by this process,
// and with it the leases of the children that are to begin in it, all or none, as
// Admit does; children, which may be nil, says which, and is called within the
// transaction. The source must be running, as in LiveLease. A limit that would
// be exceeded is INSUFFICIENT_DISK.
func (s *Store) BeginSnapshot(ctx context.Context, n NewSnapshot, lim SnapshotLimits, children func(Snapshot) []NewLease, leaseLim Limits) (Snapshot, []Lease, error) {
	var sn Snapshot
	var leases []Lease
	err := s.write(ctx, "recording a snapshot", func(ctx context.Context, tx *sql.Tx) error {
		source, err := leaseByID(ctx, tx, n.InstanceID)
		if err != nil {
			return err
		}
		if err := s.usable(source); err != nil {
			return err
		}
		if err := lim.check(ctx, tx, n); err != nil {
			return err
		}
		if sn, err = s.insertSnapshot(ctx, tx, n, source); err != nil {
			return err
		}
		if children != nil {
			all := children(sn)
			for i := range all {
				all[i].ParentSnapshot = sn.SnapshotID
				all[i].Request = n.Request
			}
			if leases, err = s.admitAll(ctx, tx, all, source.InstanceID, leaseLim); err != nil {
				return err
			}
		}
		if n.Request.tracked() {
			if err := bindSnapshot(ctx, tx, n.Request, sn.SnapshotID); err != nil {
				return err
			}
		}
		return s.snapshotEvent(ctx, tx, sn, "", OutcomeOK)
	})
	if err != nil {
		return Snapshot{}, nil, err
	}
	if n.Request.tracked() {
		n.Request.SnapshotID = sn.SnapshotID
	}
	return sn, leases, nil
}

func (lim SnapshotLimits) check(ctx context.Context, q querier, n NewSnapshot) error {
	all, err := snapshots(ctx, q, SnapshotFilter{})
	if err != nil {
		return err
	}
	var held, making int64
	for _, sn := range all {
		held += sn.Bytes()
		if sn.Status == SnapshotCreating {
			making += sn.ReservedBytes
		}
	}
	if lim.FreeBytes > 0 && making+n.ReservedBytes > lim.FreeBytes {
		return fault.New(fault.InsufficientDisk, "a snapshot that may take %s does not fit: the host's disk has %s for it",
			humanize.IBytes(uint64(n.ReservedBytes)), humanize.IBytes(uint64(max(0, lim.FreeBytes-making)))).
			Because("a snapshot holds the whole memory of its source, and some space must stay free").
			With("needed_bytes", n.ReservedBytes).With("free_bytes", max(0, lim.FreeBytes-making)).
			Next("free space on the host's disk, or delete_snapshot what is no longer needed (list_snapshots shows sizes)")
	}
	if lim.CapBytes <= 0 || held+n.ReservedBytes <= lim.CapBytes {
		return nil
	}
	e := fault.New(fault.InsufficientDisk, "a snapshot that may take %s does not fit: %s of the %s for snapshots are taken",
		humanize.IBytes(uint64(n.ReservedBytes)), humanize.IBytes(uint64(held)), humanize.IBytes(uint64(lim.CapBytes))).
		Because("snapshots stay until they are deleted, and forks as long as their children").
		With("needed_bytes", n.ReservedBytes).With("held_bytes", held).With("cap_bytes", lim.CapBytes)
	slices.SortStableFunc(all, func(a, b Snapshot) int { return cmp.Compare(b.Bytes(), a.Bytes()) })
	for _, sn := range all[:min(len(all), 5)] {
		if sn.Kind == SnapshotKept {
			e.Next("delete_snapshot %s if it is no longer needed (%s, %s)", sn.SnapshotID, humanize.IBytes(uint64(sn.Bytes())), sn.CreatedAt.Format(time.RFC3339))
		}
	}
	return e.Next("or destroy forked instances; the operator can raise SANDBOX_SNAPSHOT_CAP_GIB")
}

func (s *Store) insertSnapshot(ctx context.Context, tx *sql.Tx, n NewSnapshot, l Lease) (Snapshot, error) {
	running := 0
	if err := tx.QueryRowContext(ctx, sqlRunningTasks, l.InstanceID).Scan(&running); err != nil {
		return Snapshot{}, err
	}
	request := ""
	if n.Request != nil {
		request = n.Request.ID
	}
	for attempt := 1; ; attempt++ {
		id, err := s.newID("snap_", 8)
		if err != nil {
			return Snapshot{}, err
		}
		sn, err := scanSnapshot(tx.QueryRowContext(ctx, sqlInsertSnapshot, id, n.Kind, n.Name, n.Description, l.InstanceID, l.ParentSnapshot,
			l.Backend, n.Dir(id), s.self.Session, s.self.Session, s.self.PID, s.self.Boot, s.self.Start, stamp(s.now()), n.ReservedBytes,
			running, l.ProfileName, l.WorkspaceRoot, l.WorkspaceID, l.MemoryMiB, l.DiskBytes, l.CPUs, l.Accelerator,
			l.RuntimeName, l.RuntimeReady, l.DockerCommand, l.RemotePath, request, text(l.Config), text(l.Spec), text(l.Connection)))
		if !isUnique(err) || attempt == idAttempts {
			return sn, err
		}
	}
}

// Saved is what is known of a state once it was saved.
type Saved struct {
	Pause       time.Duration
	MemoryBytes int64
	DiskBytes   int64
	Accelerator string
}

// MoveSnapshot changes a snapshot's status by compare-and-set and makes this
// process its holder. A snapshot of another generation, or whose status does
// not allow it, is returned as it is with ErrConflict. An unknown id is
// SNAPSHOT_NOT_FOUND. saved is needed on the way from creating to ready.
//
// A ready snapshot in which an active lease began does not move to deleting:
// the error is a fault INVALID_ARGUMENT that wraps ErrSnapshotInUse and names
// the instances. One that is not ready is nobody's: then the leases of its
// children are in the way of nothing.
//
// On the way from creating to deleting an open request forgets the snapshot, as
// it was never its result. One that names a snapshot which is gone has therefore
// had it.
func (s *Store) MoveSnapshot(ctx context.Context, id string, generation int64, to SnapshotStatus, saved *Saved) (Snapshot, error) {
	var sn Snapshot
	err := s.write(ctx, "changing a snapshot", func(ctx context.Context, tx *sql.Tx) error {
		before, err := snapshotByID(ctx, tx, id)
		if err != nil {
			return err
		}
		sn = before
		if before.Generation != generation || !slices.Contains(snapshotMoves[before.Status], to) {
			return snapshotConflict(before, to)
		}
		if before.Status == SnapshotReady {
			children, err := leases(ctx, tx, LeaseFilter{ParentSnapshot: id})
			if err != nil {
				return err
			}
			if len(children) > 0 {
				return snapshotInUse(before, children)
			}
		}
		if before.Status == SnapshotCreating && to == SnapshotDeleting {
			if _, err := tx.ExecContext(ctx, sqlUnbindSnapshot, id); err != nil {
				return err
			}
		}
		if saved == nil {
			saved = &Saved{before.Pause, before.MemoryBytes, before.DiskBytes, before.Accelerator}
		}
		sn, err = scanSnapshot(tx.QueryRowContext(ctx, sqlMoveSnapshot, id, generation, to,
			s.self.Session, s.self.PID, s.self.Boot, s.self.Start,
			saved.Pause.Microseconds(), saved.MemoryBytes, saved.DiskBytes, saved.Accelerator))
		if err != nil {
			return err
		}
		return s.snapshotEvent(ctx, tx, sn, before.Status, OutcomeOK)
	})
	return sn, err
}

// EndSnapshot forgets a snapshot whose directory is gone, by compare-and-set.
// It must be in deleting. One that is forgotten already is success.
func (s *Store) EndSnapshot(ctx context.Context, id string, generation int64) error {
	return s.write(ctx, "forgetting a snapshot", func(ctx context.Context, tx *sql.Tx) error {
		sn, err := snapshotByID(ctx, tx, id)
		if fault.Is(err, fault.SnapshotNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if sn.Status != SnapshotDeleting || sn.Generation != generation {
			return snapshotConflict(sn, "")
		}
		if _, err := tx.ExecContext(ctx, sqlDeleteSnapshot, id); err != nil {
			return err
		}
		from := sn.Status
		sn.Status = ""
		return s.snapshotEvent(ctx, tx, sn, from, OutcomeOK)
	})
}

// SnapshotFilter selects snapshots. The zero filter selects all.
type SnapshotFilter struct {
	InstanceID string // the source
}

// Snapshots returns the snapshots a filter selects, newest first.
func (s *Store) Snapshots(ctx context.Context, f SnapshotFilter) ([]Snapshot, error) {
	all, err := snapshots(ctx, s.reader, f)
	return all, s.explain(err, "listing snapshots")
}

// Snapshot returns one snapshot, in any status. An unknown id is
// SNAPSHOT_NOT_FOUND.
func (s *Store) Snapshot(ctx context.Context, id string) (Snapshot, error) {
	sn, err := snapshotByID(ctx, s.reader, id)
	return sn, s.explain(err, "reading a snapshot")
}

// ReadySnapshot returns a snapshot that can be used. One that is being made is
// RUNTIME_NOT_READY, one that is being deleted SNAPSHOT_NOT_FOUND.
func (s *Store) ReadySnapshot(ctx context.Context, id string) (Snapshot, error) {
	sn, err := readySnapshot(ctx, s.reader, id)
	return sn, s.explain(err, "reading a snapshot")
}

func readySnapshot(ctx context.Context, q querier, id string) (Snapshot, error) {
	sn, err := snapshotByID(ctx, q, id)
	if err != nil {
		return sn, err
	}
	switch sn.Status {
	case SnapshotCreating:
		return sn, fault.New(fault.RuntimeNotReady, "snapshot %s is still being made", id).
			Because("it was asked for at %s and the state is being written", sn.CreatedAt.Format(time.RFC3339)).
			Next("repeat the call in a few seconds").With("snapshot_id", id)
	case SnapshotDeleting:
		return sn, fault.New(fault.SnapshotNotFound, "snapshot %s is being deleted", id).
			Because("delete_snapshot was called for it").
			Next("call list_snapshots to see the snapshots there are").
			With("snapshot_id", id)
	}
	return sn, nil
}

func snapshots(ctx context.Context, q querier, f SnapshotFilter) ([]Snapshot, error) {
	return collect(ctx, q, scanSnapshot, sqlSnapshots, f.InstanceID)
}

func snapshotByID(ctx context.Context, q querier, id string) (Snapshot, error) {
	sn, err := scanSnapshot(q.QueryRowContext(ctx, sqlSnapshotByID, id))
	if errors.Is(err, sql.ErrNoRows) {
		err = fault.New(fault.SnapshotNotFound, "no snapshot %q", id).
			Because("it was deleted, or the id belongs to another state directory or never existed").
			Next("call list_snapshots to see the snapshots there are").
			With("snapshot_id", id)
	}
	return sn, err
}

// snapshotEvent records a step of a snapshot's life under its source.
func (s *Store) snapshotEvent(ctx context.Context, tx *sql.Tx, sn Snapshot, from SnapshotStatus, outcome string) error {
	return s.addEvent(ctx, tx, Event{
		InstanceID: sn.InstanceID, What: "snapshot", From: string(from), To: string(sn.Status), Outcome: outcome,
		Detail: encode(map[string]any{"snapshot_id": sn.SnapshotID, "kind": sn.Kind}),
	})
}

// bindSnapshot notes in a pending request which snapshot it has begun.
func bindSnapshot(ctx context.Context, tx *sql.Tx, r *Request, id string) error {
	_, err := scanRequest(tx.QueryRowContext(ctx, sqlBindSnapshot, r.Scope, r.ID, r.attempt, id))
	if errors.Is(err, sql.ErrNoRows) {
		return requestConflict(*r)
	}
	return err
}

func snapshotConflict(sn Snapshot, to SnapshotStatus) error {
	return fault.Wrap(ErrConflict, fault.RuntimeNotReady, "snapshot %s is %s", sn.SnapshotID, sn.Status).
		Because("another call or process changed it first").
		Next("look with list_snapshots, and repeat the call if it is still wanted").
		With("snapshot_id", sn.SnapshotID).With("status", string(sn.Status)).With("wanted", string(to))
}

// snapshotInUse names who began in a snapshot.
func snapshotInUse(sn Snapshot, children []Lease) error {
	var ids []string
	e := fault.Wrap(ErrSnapshotInUse, fault.InvalidArgument, "%d instance(s) began in snapshot %s and need it", len(children), sn.SnapshotID).
		Because("an instance uses the memory and disk of the snapshot that it began in as long as it exists")
	for _, l := range children {
		ids = append(ids, l.InstanceID)
		if l.Status.ending() {
			e.Next("%s is being removed already: try again in a few seconds", l.InstanceID)
		} else {
			e.Next("destroy_instance %s if it is no longer needed (%s, expires %s)", l.InstanceID, l.Status, l.ExpiresAt.Format(time.RFC3339))
		}
	}
	return e.With("snapshot_id", sn.SnapshotID).With("instances", ids)
}
