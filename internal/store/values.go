package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// stamp is a time as it is stored; the zero time is NULL.
func stamp(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

// unstamp reads into a time what stamp wrote.
type unstamp struct{ t *time.Time }

func (u unstamp) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*u.t = time.Time{}
	case int64:
		*u.t = time.UnixMilli(v).UTC()
	default:
		return fmt.Errorf("a time is stored as %T", v)
	}
	return nil
}

// text is JSON as it is stored; empty is NULL.
func text(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return string(b)
}

// untext reads into a raw message what text wrote.
type untext struct{ b *json.RawMessage }

func (u untext) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*u.b = nil
	case string:
		*u.b = json.RawMessage(v)
	default:
		return fmt.Errorf("JSON is stored as %T", v)
	}
	return nil
}

// limit turns "no limit" (0 or less) into a bound SQL understands.
func limit(n int) int {
	if n <= 0 {
		return math.MaxInt32
	}
	return n
}

// scanner is a *sql.Row or *sql.Rows.
type scanner interface{ Scan(...any) error }

// querier is a *sql.DB or *sql.Tx.
type querier interface {
	QueryContext(context.Context, string, ...any) (*sql.Rows, error)
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

// collect reads every row of a query.
func collect[T any](ctx context.Context, q querier, scan func(scanner) (T, error), query string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}
