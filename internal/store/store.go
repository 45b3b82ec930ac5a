package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"sandboxforge/internal/fault"
)

// turnTimeout is how long a write waits for its turn among all processes.
const turnTimeout = 15 * time.Second

// readers bounds the reader pool: tools run concurrently, and a read of this
// database takes well under a millisecond.
const readers = 4

// Options say where the database is and who opens it.
type Options struct {
	// Path is the database file, absolute. Its directory is made (0700) and the
	// file too (0600).
	Path string
	// Self is the process that opens the store, recorded with all it does.
	Self Owner
	// Clock is the time source; nil is time.Now.
	Clock func() time.Time
	// Rand is the source of ids; nil is crypto/rand.
	Rand io.Reader
	// Alive tells whether an owner still lives; nil is ProcessAlive.
	Alive func(Owner) bool

	probe fsProbe // nil is probeFS
}

// Store is an open lease database. Its methods may be called concurrently.
type Store struct {
	path   string
	self   Owner
	clock  func() time.Time
	alive  func(Owner) bool
	fsType string

	randMu sync.Mutex
	rand   io.Reader

	writer *sql.DB // one connection
	reader *sql.DB
}

// openMu serialises Open within the process, see prepareLocation.
var openMu sync.Mutex

// Open opens the database, making or migrating it as needed. A file that is
// not SandboxForge's, is damaged, was written by a newer version, or lies on a
// network file system is refused and left as it is.
func Open(ctx context.Context, o Options) (*Store, error) {
	openMu.Lock()
	defer openMu.Unlock()
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Alive == nil {
		o.Alive = ProcessAlive
	}
	if o.probe == nil {
		o.probe = probeFS
	}
	path, err := prepareLocation(o.Path, o.probe)
	if err != nil {
		return nil, err
	}
	s := &Store{path: path, self: o.Self, clock: o.Clock, alive: o.Alive, rand: o.Rand}
	s.fsType, _, _ = o.probe(filepath.Dir(path))
	const doing = "opening it"
	if err := examine(ctx, path); err != nil {
		return nil, s.explain(err, doing)
	}
	if s.writer, err = sql.Open("sqlite", dsn(path, false)); err != nil {
		return nil, s.explain(err, doing)
	}
	// One writer: with several, they wait for each other inside SQLite, which
	// polls, instead of in a queue that wakes the next.
	s.writer.SetMaxOpenConns(1)
	if s.reader, err = sql.Open("sqlite", dsn(path, true)); err != nil {
		s.Close()
		return nil, s.explain(err, doing)
	}
	s.reader.SetMaxOpenConns(readers)
	s.reader.SetMaxIdleConns(readers)
	// Switching a new file to WAL does not wait for another process that does
	// the same; it fails busy.
	err = s.untilFree(ctx, func() error { return migrate(ctx, s.writer, path) })
	if err == nil {
		err = s.confirmWAL(ctx)
	}
	if err != nil {
		s.Close()
		return nil, s.explain(err, doing)
	}
	return s, nil
}

// Close waits for running calls and closes the database.
func (s *Store) Close() error {
	var errs []error
	if s.reader != nil {
		errs = append(errs, s.reader.Close())
	}
	// The writer last: it takes the log into the file when it is the last user.
	if s.writer != nil {
		errs = append(errs, s.writer.Close())
	}
	return errors.Join(errs...)
}

// Path is the database file, symlinks resolved.
func (s *Store) Path() string { return s.path }

// Owner is the process that opened this store.
func (s *Store) Owner() Owner { return s.self }

// Alive reports whether an owner still lives. The zero Owner, nobody, does not.
func (s *Store) Alive(o Owner) bool { return o.samePlace(s.self) || o.PID != 0 && s.alive(o) }

// dsn is the driver's data source name. Its own busy timeout is short, since
// begin waits longer by itself and can be cancelled.
func dsn(path string, readOnly bool) string {
	q := url.Values{}
	q.Set("_txlock", "immediate")
	pragmas := []string{"busy_timeout(250)"}
	if st, err := os.Stat(path); err == nil && st.Size() == 0 {
		// Effective on a new file only, and on any other a write, which a full
		// disk refuses.
		pragmas = append(pragmas, "auto_vacuum(incremental)")
	}
	pragmas = append(pragmas, "journal_mode(wal)", "synchronous(full)", "foreign_keys(1)", "journal_size_limit(8388608)")
	if readOnly {
		// A reader never waits for a writer under WAL; only recovery after a
		// crash makes it wait.
		q.Set("_txlock", "deferred")
		pragmas = []string{"busy_timeout(15000)", "query_only(1)", "foreign_keys(1)"}
	}
	q["_pragma"] = pragmas
	return fileURI(path) + "?" + q.Encode()
}

func fileURI(path string) string {
	p := filepath.ToSlash(path)
	if filepath.VolumeName(path) != "" {
		p = "/" + p
	}
	return (&url.URL{Scheme: "file", Path: p}).String()
}

// examine looks at an existing file before anything is set on it, so that one
// which is not ours stays as it is, and gets no log beside it.
func examine(ctx context.Context, path string) error {
	if st, err := os.Stat(path); err != nil {
		return unwritable(err, path, "cannot look at the lease database")
	} else if st.Size() == 0 {
		return nil
	}
	hasLog := func() bool {
		_, err := os.Lstat(path + "-wal")
		return err == nil
	}
	for range 3 {
		if hasLog() {
			break
		}
		// Nobody has it open, so the file is whole, and can be read without
		// making a log. If somebody opens it right now, a contradiction may
		// be only that: look again, with locks.
		if err := examineWith(ctx, path, "immutable=1"); err == nil || !hasLog() {
			return err
		}
	}
	return examineWith(ctx, path, "mode=ro")
}

func examineWith(ctx context.Context, path, how string) error {
	db, err := sql.Open("sqlite", fileURI(path)+"?_pragma=busy_timeout(15000)&"+how)
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	// In one transaction: another process may be making the database, and its
	// tables must not be seen without its mark.
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	var version, app, tables int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if err := tx.QueryRowContext(ctx, "PRAGMA application_id").Scan(&app); err != nil {
		return err
	}
	switch {
	case app == applicationID && version > SchemaVersion:
		return newerSchema(path, version)
	case app != applicationID && (tables > 0 || version != 0 || app != 0):
		return fault.Wrap(ErrForeign, fault.InvalidArgument, "%s is not a SandboxForge lease database; it was not touched", path).
			Because("another program, or the earlier Python version, made it").
			Next("set LEASE_DB_PATH to another file, existing or not, or unset it").
			With("path", path).With("application_id", app)
	}
	return nil
}

func (s *Store) confirmWAL(ctx context.Context) error {
	var mode string
	if err := s.writer.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
		return err
	}
	if mode != "wal" {
		return fault.Wrap(ErrNetworkFS, fault.InvalidArgument, "the file system of %s cannot keep a write-ahead log (journal mode %q)", s.path, mode).
			Next("set LEASE_DB_PATH (or SANDBOXFORGE_HOME) to a directory on a local disk").With("path", s.path)
	}
	return nil
}

// untilFree repeats f while the database is busy, until ctx ends or
// turnTimeout has passed.
func (s *Store) untilFree(ctx context.Context, f func() error) error {
	deadline := time.Now().Add(turnTimeout)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := f()
		if err == nil || !isBusy(err) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// write runs f in an immediate transaction. Waiting for the turn ends with
// ctx; from then on f and the commit run to their end, so that a cancelled
// caller never leaves behind a commit that nobody knows of.
func (s *Store) write(ctx context.Context, doing string, f func(context.Context, *sql.Tx) error) error {
	conn, err := s.writer.Conn(ctx)
	if err != nil {
		return s.explain(err, doing)
	}
	defer conn.Close()
	whole := context.WithoutCancel(ctx)
	var tx *sql.Tx
	err = s.untilFree(ctx, func() (err error) {
		tx, err = conn.BeginTx(whole, nil)
		return err
	})
	if err != nil {
		return s.explain(err, doing)
	}
	defer tx.Rollback() // no effect after a commit; covers a panic in f
	if err := f(whole, tx); err != nil {
		return s.explain(err, doing)
	}
	return s.explain(tx.Commit(), doing)
}

// newID is prefix and n hex digits.
func (s *Store) newID(prefix string, n int) (string, error) {
	b := make([]byte, n/2)
	s.randMu.Lock()
	defer s.randMu.Unlock()
	if _, err := io.ReadFull(s.rand, b); err != nil {
		return "", fmt.Errorf("random id: %w", err)
	}
	return prefix + hex.EncodeToString(b), nil
}

// idAttempts bounds the retries after an id that is already taken.
const idAttempts = 8

func (s *Store) now() time.Time { return s.clock().UTC().Truncate(time.Millisecond) }
