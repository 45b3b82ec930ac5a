package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"sandboxforge/internal/fault"
)

// What is kept, and how long. list_instances with include_expired and
// get_task_logs reach back this far.
const (
	TerminalRetention = 7 * 24 * time.Hour
	MaxTerminal       = 500
	EventRetention    = 30 * 24 * time.Hour
	MaxEvents         = 20_000
	RequestRetention  = 7 * 24 * time.Hour
	MaxRequests       = 5_000
	TailBudget        = 64 << 20 // bytes, all tails together
)

// Pruned counts what Prune removed.
type Pruned struct {
	Leases, Events, Requests, Tails int64
}

// Prune removes what is older or more than the constants above allow, and
// gives the space back to the file system. The sweeper calls it.
func (s *Store) Prune(ctx context.Context) (Pruned, error) {
	var p Pruned
	now := s.now()
	err := s.write(ctx, "pruning old records", func(ctx context.Context, tx *sql.Tx) error {
		var last int64
		if err := tx.QueryRowContext(ctx, sqlLastEvent).Scan(&last); err != nil {
			return err
		}
		for _, step := range []struct {
			count *int64
			query string
			args  []any
		}{
			{&p.Leases, sqlPruneLeases, []any{stamp(now.Add(-TerminalRetention)), MaxTerminal}},
			{&p.Events, sqlPruneEvents, []any{stamp(now.Add(-EventRetention))}},
			{&p.Events, sqlTrimEvents, []any{last - MaxEvents}},
			{&p.Requests, sqlPruneRequests, []any{stamp(now.Add(-RequestRetention)), MaxRequests}},
			{&p.Tails, sqlPruneTails, []any{TailBudget}},
		} {
			r, err := tx.ExecContext(ctx, step.query, step.args...)
			if err != nil {
				return err
			}
			n, err := r.RowsAffected()
			if err != nil {
				return err
			}
			*step.count += n
		}
		return nil
	})
	if err != nil || p == (Pruned{}) {
		return p, err
	}
	// A few pages each time; the pragma steps once per page, hence the query.
	return p, s.write(ctx, "shrinking the database", func(ctx context.Context, tx *sql.Tx) error {
		rows, err := tx.QueryContext(ctx, "PRAGMA incremental_vacuum(2000)")
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
		}
		return rows.Err()
	})
}

// Check looks for damage: SQLite's integrity check and foreign keys. It returns
// one sentence per problem; none means the database is sound.
func (s *Store) Check(ctx context.Context) ([]string, error) {
	one := func(row scanner) (string, error) {
		var line string
		err := row.Scan(&line)
		return line, err
	}
	lines, err := collect(ctx, s.reader, one, "PRAGMA integrity_check(20)")
	if err != nil {
		return nil, s.explain(err, "checking the database")
	}
	var problems []string
	for _, l := range lines {
		if l != "ok" {
			problems = append(problems, l)
		}
	}
	orphans, err := collect(ctx, s.reader, func(row scanner) (string, error) {
		var table, parent string
		var rowid sql.NullInt64
		var key int
		err := row.Scan(&table, &rowid, &parent, &key)
		return fmt.Sprintf("row %d of %s refers to a missing row of %s", rowid.Int64, table, parent), err
	}, "PRAGMA foreign_key_check")
	return append(problems, orphans...), s.explain(err, "checking the database")
}

// Backup writes a consistent copy of the database to dest, mode 0600, while
// others go on using it. dest appears whole or not at all, and must not exist.
// On cancel nothing is left.
func (s *Store) Backup(ctx context.Context, dest string) (err error) {
	const doing = "backing up"
	if _, err := os.Lstat(dest); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fs.ErrExist
		}
		return fault.Wrap(err, fault.InvalidArgument, "cannot back up to %s", dest).
			Next("name a file that does not exist, in a directory that does")
	}
	dir, err := os.MkdirTemp(filepath.Dir(dest), ".backup-*") // 0700
	if err != nil {
		return unwritable(err, filepath.Dir(dest), "cannot write the backup")
	}
	defer os.RemoveAll(dir)
	tmp := filepath.Join(dir, "leases.db")
	// query_only, set on the readers, forbids this too; and the writer has
	// better things to do.
	db, err := sql.Open("sqlite", fileURI(s.path)+"?_pragma=busy_timeout(15000)")
	if err != nil {
		return s.explain(err, doing)
	}
	_, err = db.ExecContext(ctx, "VACUUM INTO ?", tmp)
	if err = errors.Join(err, db.Close()); err != nil {
		return s.explain(err, doing)
	}
	f, err := os.OpenFile(tmp, os.O_RDWR, 0)
	if err != nil {
		return s.explain(err, doing)
	}
	err = errors.Join(f.Chmod(0o600), f.Sync(), f.Close())
	if err != nil {
		return s.explain(err, doing)
	}
	// A link, unlike a rename, never replaces what came there meanwhile.
	if err = os.Link(tmp, dest); err != nil && !errors.Is(err, fs.ErrExist) {
		err = os.Rename(tmp, dest) // no hard links there
	}
	return s.explain(err, doing)
}

// Info describes the database, for doctor.
type Info struct {
	Path          string
	FileSystem    string
	SchemaVersion int
	SQLiteVersion string
	JournalMode   string
	SizeBytes     int64 // without the log
	Leases        int   // of any status
	Tasks         int
	Events        int
}

// Info looks at the database.
func (s *Store) Info(ctx context.Context) (Info, error) {
	i := Info{Path: s.path, FileSystem: s.fsType}
	for query, into := range map[string]any{
		"PRAGMA user_version":         &i.SchemaVersion,
		"SELECT sqlite_version()":     &i.SQLiteVersion,
		"PRAGMA journal_mode":         &i.JournalMode,
		"SELECT count(*) FROM leases": &i.Leases,
		"SELECT count(*) FROM tasks":  &i.Tasks,
		"SELECT count(*) FROM events": &i.Events,
	} {
		if err := s.reader.QueryRowContext(ctx, query).Scan(into); err != nil {
			return i, s.explain(err, "looking at the database")
		}
	}
	st, err := os.Stat(s.path)
	if err != nil {
		return i, s.explain(err, "looking at the database")
	}
	i.SizeBytes = st.Size()
	return i, nil
}
