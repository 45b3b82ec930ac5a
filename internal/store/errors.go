package store

import (
	"context"
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"sandboxforge/internal/fault"
)

// Error kinds, wrapped by the faults that this package returns.
var (
	// ErrConflict: a compare-and-set lost; somebody else changed the row first.
	// Nothing was written. Read the row again and decide anew.
	ErrConflict = errors.New("changed meanwhile by another process or call")
	// ErrNewerSchema: a newer SandboxForge wrote the file. It was not touched.
	ErrNewerSchema = errors.New("newer schema")
	// ErrForeign: the file is a database, but not SandboxForge's.
	ErrForeign = errors.New("not a SandboxForge database")
	// ErrCorrupt: the file is damaged or no database.
	ErrCorrupt = errors.New("damaged database")
	// ErrReadOnly: the file or its directory cannot be written.
	ErrReadOnly = errors.New("not writable")
	// ErrNetworkFS: the file lies where a write-ahead log cannot be kept safely.
	ErrNetworkFS = errors.New("file system unfit for a write-ahead log")
	// ErrBusy: other processes held the database for longer than turnTimeout.
	ErrBusy = errors.New("database busy")
	// ErrSnapshotInUse: active leases began in a snapshot that was to be deleted.
	ErrSnapshotInUse = errors.New("the snapshot is in use")
)

// kindError lets one fault match both a sentinel and the driver's error.
type kindError struct{ kind, cause error }

func (e kindError) Error() string   { return e.cause.Error() }
func (e kindError) Unwrap() []error { return []error{e.kind, e.cause} }

func resultCode(err error) int {
	var se *sqlite.Error
	if errors.As(err, &se) {
		return se.Code()
	}
	return 0
}

func isBusy(err error) bool {
	c := resultCode(err) & 0xff
	return c == sqlite3.SQLITE_BUSY || c == sqlite3.SQLITE_LOCKED
}

func isUnique(err error) bool {
	c := resultCode(err)
	return c == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY || c == sqlite3.SQLITE_CONSTRAINT_UNIQUE
}

// explain turns what the driver reports into a fault. Faults, sentinels and
// context errors pass unchanged.
func (s *Store) explain(err error, doing string) error { return explain(err, s.path, doing) }

func explain(err error, path, doing string) error {
	var known *fault.Error
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", doing, err)
	}
	with := func(kind error, code fault.Code, format string, args ...any) *fault.Error {
		return fault.Wrap(kindError{kind, err}, code, format, args...).With("path", path)
	}
	switch resultCode(err) & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return with(ErrCorrupt, fault.Internal, "%s: the lease database %s is damaged", doing, path).
			Because("the file was overwritten, truncated or hit by a disk error, or it is no SQLite file").
			Next("stop every SandboxForge server, then move %s and the files %s-wal and %s-shm aside", path, path, path).
			Next("put a backup in its place, or start with none: `sandboxforge gc` then removes the VMs that no lease claims")
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH:
		return with(ErrReadOnly, fault.Internal, "%s: the lease database %s cannot be written", doing, path).
			Because("the file or its directory is read-only for this user, or the directory is gone").
			Next("make %s and its directory writable for the user that runs SandboxForge", path).
			Next("or set SANDBOXFORGE_HOME or LEASE_DB_PATH to a writable place on a local disk")
	case sqlite3.SQLITE_FULL:
		return with(err, fault.InsufficientDisk, "%s: no space left for the lease database %s", doing, path).
			Because("the file system that holds it is full or over quota").
			Next("free some space there, for example with `sandboxforge gc` or by removing images nobody uses")
	case sqlite3.SQLITE_IOERR:
		return with(err, fault.Internal, "%s: reading or writing the lease database %s failed", doing, path).
			Because("the disk reported an error, or the file was replaced while it was open").
			Next("look at the system log for disk errors, then run `sandboxforge doctor`")
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL:
		return with(ErrBusy, fault.Internal, "%s: the lease database %s was held by another process for %v", doing, path, turnTimeout).
			Because("a process holds it in a long transaction or is stopped while holding it").
			Next("repeat the call; if it fails again, look for a stopped SandboxForge process or a database browser that has %s open", path)
	}
	return fault.Wrap(err, fault.Internal, "%s: the lease database %s refused", doing, path).With("path", path)
}

func instanceNotFound(id string) *fault.Error {
	return fault.New(fault.InstanceNotFound, "there is no instance %q", id).
		Because("the id is wrong, or the instance ended so long ago that its record was pruned").
		Next("call list_instances (include_expired=true shows ended ones) and use an instance_id from there").
		With("instance_id", id)
}

// instanceEnded is the fault for a lease that clean-up owns.
func instanceEnded(l Lease) *fault.Error {
	state := "has ended"
	if !l.Status.Terminal() {
		state = "is being removed"
	}
	e := fault.New(fault.InstanceTerminal, "instance %s %s: its status is %s", l.InstanceID, state, l.Status).
		With("instance_id", l.InstanceID).With("status", string(l.Status))
	switch {
	case l.Status == Expiring || l.Status == Expired:
		e.Because("its deadline was %s", l.ExpiresAt.Format("2006-01-02T15:04:05Z07:00")).
			Next("call create_instance for a new one, with a longer ttl_minutes, or call extend_instance_ttl in time")
	case l.EndReason != "":
		e.Because("its end was: %s", l.EndReason)
	}
	if l.EndReason != "" {
		e.With("end_reason", l.EndReason)
	}
	if e.NextSteps == nil {
		e.Next("call create_instance for a new one; nothing of this one can be used again")
	}
	return e.Next("read what its tasks last printed with list_tasks and get_task_logs")
}

// notLive is the fault for a lease that is not running, by its status.
func notLive(l Lease) error {
	switch {
	case l.Status.CleanupOwned():
		return instanceEnded(l)
	case l.Status == Creating:
		return fault.New(fault.RuntimeNotReady, "instance %s is still being created", l.InstanceID).
			Because("its create_instance call has not finished").
			Next("wait for create_instance to return, or call list_instances until the status is running").
			With("instance_id", l.InstanceID).With("status", string(l.Status))
	}
	e := fault.New(fault.InstanceLost, "instance %s is in error and cannot be used", l.InstanceID).
		Next("call destroy_instance to remove what is left of it, then create_instance for a new one").
		With("instance_id", l.InstanceID).With("status", string(l.Status))
	if l.EndReason != "" {
		e.Because("%s", l.EndReason)
	}
	if l.Error != nil {
		e.With("error", l.Error)
	}
	return e
}

// conflict is the fault for a lost compare-and-set on a lease.
func conflict(l Lease, generation int64, to Status) error {
	if l.Status.CleanupOwned() {
		e := instanceEnded(l)
		e.Err = ErrConflict
		return e
	}
	e := fault.Wrap(ErrConflict, fault.Internal, "instance %s did not become %s", l.InstanceID, to).
		Next("call list_instances to see its state now, and repeat the call if it still applies").
		With("instance_id", l.InstanceID).With("status", string(l.Status)).With("generation", l.Generation)
	if generation != AnyGeneration && generation != l.Generation {
		return e.Because("it was changed meanwhile: generation %d, expected %d", l.Generation, generation)
	}
	return e.Because("an instance that is %s cannot become %s", l.Status, to)
}
