package store

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"

	"sandboxforge/internal/fault"
)

// applicationID marks the file as SandboxForge's (PRAGMA application_id), so
// that another program's database under LEASE_DB_PATH is recognised.
const applicationID = 0x53466f72 // "SFor"

//go:embed migrations/0001.sql
var migration1 string

//go:embed migrations/0002.sql
var migration2 string

//go:embed migrations/0003.sql
var migration3 string

//go:embed migrations/0004.sql
var migration4 string

// migrations[i] brings a database from version i to i+1. A published migration
// is never edited; later ones are appended.
var migrations = []string{migration1, migration2, migration3, migration4}

// SchemaVersion is the version (PRAGMA user_version) this build reads and writes.
var SchemaVersion = len(migrations)

// migrate brings the database to SchemaVersion in one immediate transaction:
// either all steps happen or none, and of several processes one does the work.
func migrate(ctx context.Context, db *sql.DB, path string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	var version int
	if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version > SchemaVersion {
		return newerSchema(path, version)
	}
	if version == SchemaVersion {
		return nil
	}
	for i, step := range migrations[version:] {
		if _, err := tx.ExecContext(ctx, step); err != nil {
			return fmt.Errorf("migration %d: %w", version+i+1, err)
		}
	}
	// PRAGMA takes no parameters; both values are constants of this package.
	_, err = tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d; PRAGMA application_id = %d", SchemaVersion, applicationID))
	if err != nil {
		return err
	}
	return tx.Commit()
}

func newerSchema(path string, version int) error {
	return fault.Wrap(ErrNewerSchema, fault.Internal, "the lease database %s has schema version %d, this build knows %d; it was not touched", path, version, SchemaVersion).
		Because("a newer SandboxForge has used this database").
		Next("start the newer SandboxForge (compare `sandboxforge --version` of the installed copies)").
		Next("or give this one a database of its own with LEASE_DB_PATH").
		With("path", path).With("schema_version", version).With("supported_version", SchemaVersion)
}
