package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	"sandboxforge/internal/fault"
)

// AnyGeneration makes Move judge by status alone.
const AnyGeneration = 0

// Move is one step of a lease's life.
type Move struct {
	To Status
	// Reason says, in words for the user, why the lease ends; "" keeps the
	// earlier one.
	Reason string
	// Err is what went wrong; nil keeps the earlier one.
	Err error
	// Patch is applied with the move.
	Patch Patch
	// Detail goes into the event, as JSON.
	Detail any
}

// Move changes a lease's status by compare-and-set and makes this process its
// holder, with the event in the same transaction. It succeeds only if the
// lease has the given generation (or any, with AnyGeneration) and a status from
// which it may go there; otherwise nothing is written, the lease is returned
// as it is, and the error wraps ErrConflict, with code INSTANCE_TERMINAL if
// clean-up owns the lease. An unknown id is INSTANCE_NOT_FOUND.
//
// A move from destroying or expiring to itself takes over an abandoned
// clean-up. A move to destroyed or expired ends the lease's running tasks: the
// caller says by it that the VM is gone.
func (s *Store) Move(ctx context.Context, id string, generation int64, m Move) (Lease, error) {
	var l Lease
	err := s.write(ctx, "changing an instance", func(ctx context.Context, tx *sql.Tx) error {
		before, err := leaseByID(ctx, tx, id)
		if err != nil {
			return err
		}
		l, err = scanLease(tx.QueryRowContext(ctx, sqlMoveLease, id, generation, m.To,
			s.self.Session, s.self.PID, s.self.Boot, s.self.Start, stamp(s.now()), m.Reason, text(encodeError(m.Err)), list(sources(m.To))))
		if errors.Is(err, sql.ErrNoRows) {
			l = before
			return conflict(l, generation, m.To)
		}
		if err != nil {
			return err
		}
		if !m.Patch.empty() {
			if l, err = scanLease(tx.QueryRowContext(ctx, sqlPatchMoved, append(m.Patch.args(), id)...)); err != nil {
				return err
			}
		}
		if m.To.Terminal() {
			if err := s.endTasks(ctx, tx, l); err != nil {
				return err
			}
		}
		return s.addEvent(ctx, tx, Event{
			InstanceID: id, What: "move", From: string(before.Status), To: string(l.Status),
			Outcome: outcomeOf(m.Err), Detail: moveDetail(m),
		})
	})
	return l, err
}

func moveDetail(m Move) json.RawMessage {
	d := map[string]any{}
	if m.Reason != "" {
		d["reason"] = m.Reason
	}
	if m.Err != nil {
		d["error"] = m.Err.Error()
	}
	if m.Detail != nil {
		d["detail"] = m.Detail
	}
	if len(d) == 0 {
		return nil
	}
	return encode(d)
}

// encodeError is an error as the tool contract shows it.
func encodeError(err error) json.RawMessage {
	if err == nil {
		return nil
	}
	f := fault.From(err)
	return encode(map[string]any{"error_code": f.Code, "message": f.Error(), "details": f.DetailMap()})
}

// encode is json.Marshal for values that are only shown again: what cannot be
// encoded must not keep a lease from moving on.
func encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		b, _ = json.Marshal(map[string]string{"not_encodable": err.Error()})
	}
	return b
}

// instanceOverdue is the fault for a running lease whose deadline has passed.
func instanceOverdue(l Lease) error {
	return fault.New(fault.InstanceTerminal, "instance %s has expired", l.InstanceID).
		Because("its deadline was %s; its VM is taken down at that moment", l.ExpiresAt.Format("2006-01-02T15:04:05Z07:00")).
		Next("call create_instance for a new one, with a longer ttl_minutes, or call extend_instance_ttl in time").
		With("instance_id", l.InstanceID).With("status", string(l.Status)).With("expires_at", l.ExpiresAt)
}
