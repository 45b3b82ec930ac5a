package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"sandboxforge/internal/fault"
)

// RequestState is where a call with a request_id is.
type RequestState string

// The states.
const (
	RequestPending RequestState = "pending"
	RequestDone    RequestState = "done"
	RequestFailed  RequestState = "failed"
)

// Request is a call that carries a request_id, so that it can be repeated and
// happens once. The zero Request, or a nil pointer to one, stands for a call
// without an id: every method accepts it and records nothing.
type Request struct {
	Scope       string // the tool
	ID          string
	Fingerprint string
	State       RequestState
	InstanceID  string          // what it has made so far
	TaskID      string          //
	SnapshotID  string          //
	Result      json.RawMessage // once finished: what a repetition gets
	CreatedAt   time.Time
	FinishedAt  time.Time
	Holder      Owner // the process that runs it

	attempt int64
}

// Outcome is what BeginRequest found.
type Outcome int

// The outcomes.
const (
	// Fresh: the caller runs the request, and ends it with FinishRequest or
	// ForgetRequest.
	Fresh Outcome = iota
	// InProgress: Holder is running it. Wait for what InstanceID or TaskID
	// name, or ask again.
	InProgress
	// Finished: Result is the result of the first call, State says which kind.
	Finished
	// OwnerDied: the process that ran it died before it ended, or one that
	// took it over gave it up (ReleaseRequest). Nobody knows how far it came
	// beyond InstanceID, TaskID and SnapshotID: TakeOverRequest, then look at
	// those and finish the request, if only with UnknownFault.
	OwnerDied
)

func (o Outcome) String() string {
	switch o {
	case Fresh:
		return "fresh"
	case InProgress:
		return "in progress"
	case Finished:
		return "finished"
	case OwnerDied:
		return "owner died"
	}
	return fmt.Sprintf("Outcome(%d)", int(o))
}

// maxRequestID bounds the ids that callers choose.
const maxRequestID = 200

func (r *Request) tracked() bool { return r != nil && r.ID != "" }

// Fingerprint is a digest of a call's parameters that does not depend on the
// order of their keys. Leave the request_id itself out.
func Fingerprint(params any) string {
	b, err := json.Marshal(params)
	if err != nil {
		b = []byte(fmt.Sprintf("%#v", params))
	} else {
		var v any
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber() // a float64 would merge large numbers
		if d.Decode(&v) == nil {
			if c, err := json.Marshal(v); err == nil { // maps marshal with sorted keys
				b = c
			}
		}
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// BeginRequest starts or finds the request with an id in a scope. The same id
// with another fingerprint is INVALID_ARGUMENT. An empty id is Fresh.
func (s *Store) BeginRequest(ctx context.Context, scope, requestID, fingerprint string) (Request, Outcome, error) {
	if requestID == "" {
		return Request{}, Fresh, nil
	}
	if len(requestID) > maxRequestID {
		return Request{}, 0, fault.New(fault.InvalidArgument, "request_id has %d bytes, at most %d are allowed", len(requestID), maxRequestID).
			Next("use a short unique string, for example a UUID")
	}
	var r Request
	outcome := Fresh
	err := s.write(ctx, "recording a request", func(ctx context.Context, tx *sql.Tx) (err error) {
		r, err = scanRequest(tx.QueryRowContext(ctx, sqlRequest, scope, requestID))
		if errors.Is(err, sql.ErrNoRows) {
			r, err = scanRequest(tx.QueryRowContext(ctx, sqlInsertRequest, scope, requestID, fingerprint, stamp(s.now()),
				s.self.Session, s.self.PID, s.self.Boot, s.self.Start))
			return err
		}
		switch {
		case err != nil:
			return err
		case r.Fingerprint != fingerprint:
			return fault.New(fault.InvalidArgument, "request_id %q was used before for %s with other parameters", requestID, scope).
				Because("a request_id names one call; the first was made at %s", r.CreatedAt.Format(time.RFC3339)).
				Next("repeat the call with exactly the parameters of the first, or use a new request_id").
				With("request_id", requestID)
		case r.State != RequestPending:
			outcome = Finished
		case s.Alive(r.Holder):
			outcome = InProgress
		default:
			outcome = OwnerDied
		}
		return nil
	})
	if err != nil {
		return Request{}, 0, err
	}
	return r, outcome, nil
}

// TakeOverRequest makes this process the holder of a pending request whose
// holder died. Of several that try, one wins; the others get ErrConflict.
func (s *Store) TakeOverRequest(ctx context.Context, r Request) (Request, error) {
	if !r.tracked() {
		return r, nil
	}
	var taken Request
	err := s.write(ctx, "taking over a request", func(ctx context.Context, tx *sql.Tx) (err error) {
		taken, err = scanRequest(tx.QueryRowContext(ctx, sqlTakeOverRequest, r.Scope, r.ID, r.attempt,
			s.self.Session, s.self.PID, s.self.Boot, s.self.Start))
		if errors.Is(err, sql.ErrNoRows) {
			return requestConflict(r)
		}
		return err
	})
	if err != nil {
		return r, err
	}
	return taken, nil
}

// FinishRequest ends a request that this process holds. Each repetition gets
// result, which must encode as JSON; state is RequestDone or RequestFailed. If
// another process has taken the request over, it is ErrConflict.
func (s *Store) FinishRequest(ctx context.Context, r Request, state RequestState, result any) error {
	if !r.tracked() {
		return nil
	}
	b, err := json.Marshal(result)
	if err != nil {
		return fault.Wrap(err, fault.Internal, "the result of request %q cannot be recorded", r.ID)
	}
	return s.endRequest(ctx, r, sqlFinishRequest, r.Scope, r.ID, r.attempt, state, text(b), stamp(s.now()))
}

// ForgetRequest ends a request that changed nothing, for example one refused
// for a limit: the same id may be tried again. If another process has taken
// the request over, it is ErrConflict.
func (s *Store) ForgetRequest(ctx context.Context, r Request) error {
	if !r.tracked() {
		return nil
	}
	return s.endRequest(ctx, r, sqlForgetRequest, r.Scope, r.ID, r.attempt)
}

// ReleaseRequest gives a pending request up that this process holds: nobody
// does then, and the next repetition finds OwnerDied. It is for one that was
// taken over and whose outcome cannot be told now, but may be later. If another
// process has taken the request over, it is ErrConflict.
func (s *Store) ReleaseRequest(ctx context.Context, r Request) error {
	if !r.tracked() {
		return nil
	}
	return s.endRequest(ctx, r, sqlReleaseRequest, r.Scope, r.ID, r.attempt)
}

func (s *Store) endRequest(ctx context.Context, r Request, query string, args ...any) error {
	return s.write(ctx, "ending a request", func(ctx context.Context, tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			return requestConflict(r)
		}
		return nil
	})
}

// UnknownFault is OUTCOME_UNKNOWN for a request whose process died, naming
// what it had made.
func (r Request) UnknownFault() error {
	e := fault.New(fault.OutcomeUnknown, "it is not known how %s with request_id %q ended", r.Scope, r.ID).
		Because("the server process that ran it died before it recorded a result").
		With("request_id", r.ID)
	switch {
	case r.TaskID != "":
		e.Next("call get_task_status and get_task_logs for %s to see what it did", r.TaskID).
			With("task_id", r.TaskID).With("instance_id", r.InstanceID)
	case r.SnapshotID != "":
		e.Next("call list_snapshots and list_instances and look for %s and what began there", r.SnapshotID).
			With("snapshot_id", r.SnapshotID)
	case r.InstanceID != "":
		e.Next("call list_instances and look for %s; destroy_instance it if it is not wanted", r.InstanceID).
			With("instance_id", r.InstanceID)
	default:
		e.Next("look at the state that the call would have changed, for example with list_instances or list_tasks")
	}
	return e.Next("to run it once more, use a new request_id")
}

func requestConflict(r Request) error {
	return fault.Wrap(ErrConflict, fault.OutcomeUnknown, "request_id %q of %s is no longer run by this process", r.ID, r.Scope).
		Because("another process took it over").
		Next("repeat the call with the same request_id to get its result").
		With("request_id", r.ID)
}
