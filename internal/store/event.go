package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"time"

	"sandboxforge/internal/fault"
)

// OutcomeOK is the outcome of an event that went well; any other is an
// error_code.
const OutcomeOK = "ok"

// Event is one entry of the record of who did what: every move of a lease,
// every end of a task, and what callers Record.
type Event struct {
	ID         int64 // ascending; never reused
	At         time.Time
	InstanceID string
	TaskID     string
	Session    string // who: session and process
	PID        int
	What       string // "admit", "move", "extend", "task_finished", a tool's name, …
	From, To   string // statuses, for moves
	Outcome    string
	Detail     json.RawMessage // at most maxDetail bytes; more is replaced by a note
}

// EventFilter selects events.
type EventFilter struct {
	InstanceID string
	TaskID     string
	What       string
	AfterID    int64 // only later ones
	Limit      int   // 0: all
}

const (
	maxDetail = 8 << 10
	// trimEvery is how many events are inserted between two trims to MaxEvents.
	trimEvery = 256
)

// Record adds an event. ID, At, Session and PID are filled in.
func (s *Store) Record(ctx context.Context, e Event) error {
	return s.write(ctx, "recording an event", func(ctx context.Context, tx *sql.Tx) error {
		return s.addEvent(ctx, tx, e)
	})
}

// Events returns the events a filter selects, newest first.
func (s *Store) Events(ctx context.Context, f EventFilter) ([]Event, error) {
	all, err := collect(ctx, s.reader, scanEvent, sqlEvents, f.InstanceID, f.TaskID, f.What, f.AfterID, limit(f.Limit))
	return all, s.explain(err, "reading events")
}

func (s *Store) addEvent(ctx context.Context, tx *sql.Tx, e Event) error {
	if len(e.Detail) > maxDetail {
		e.Detail = encode(map[string]int{"dropped_bytes": len(e.Detail)})
	}
	r, err := tx.ExecContext(ctx, sqlInsertEvent, stamp(s.now()), e.InstanceID, e.TaskID, s.self.Session, s.self.PID,
		e.What, e.From, e.To, e.Outcome, text(e.Detail))
	if err != nil {
		return err
	}
	id, err := r.LastInsertId()
	if err != nil || id%trimEvery != 0 {
		return err
	}
	_, err = tx.ExecContext(ctx, sqlTrimEvents, id-MaxEvents)
	return err
}

func outcomeOf(err error) string {
	if err == nil {
		return OutcomeOK
	}
	return string(fault.CodeOf(err))
}

func scanEvent(row scanner) (Event, error) {
	var e Event
	err := row.Scan(&e.ID, unstamp{&e.At}, &e.InstanceID, &e.TaskID, &e.Session, &e.PID, &e.What, &e.From, &e.To, &e.Outcome,
		untext{&e.Detail})
	return e, err
}
