package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sandboxforge/internal/fault"
)

// snapshotDir is every file of a directory with its content.
func snapshotDir(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = string(b)
	}
	return all
}

func execIn(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", fileURI(path))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, q := range statements {
		if _, err := db.ExecContext(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

// makeDB makes a database with a lease and closes it.
func makeDB(t *testing.T, path string) {
	t.Helper()
	s, err := Open(t.Context(), Options{Path: path, Self: Self("test")})
	if err != nil {
		t.Fatal(err)
	}
	admit(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRefusedAndUntouched: what is not ours to write stays byte for byte.
func TestRefusedAndUntouched(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(t *testing.T, path string)
		kind    error
		code    fault.Code
		says    string
	}{
		"newer schema": {func(t *testing.T, path string) {
			makeDB(t, path)
			execIn(t, path, "PRAGMA user_version = 99", "CREATE TABLE later (x)")
		}, ErrNewerSchema, fault.Internal, fmt.Sprint("schema version 99, this build knows ", SchemaVersion)},
		"another program's": {func(t *testing.T, path string) {
			execIn(t, path, "CREATE TABLE leases (id TEXT PRIMARY KEY)")
		}, ErrForeign, fault.InvalidArgument, "not a SandboxForge lease database"},
		"text": {func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("this is no database\n", 100)), 0o600); err != nil {
				t.Fatal(err)
			}
		}, ErrCorrupt, fault.Internal, "is damaged"},
		"cut short": {func(t *testing.T, path string) {
			makeDB(t, path)
			if err := os.Truncate(path, 5000); err != nil {
				t.Fatal(err)
			}
		}, ErrCorrupt, fault.Internal, "is damaged"},
		"schema page overwritten": {func(t *testing.T, path string) {
			makeDB(t, path)
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte(strings.Repeat("\xff", 3000)), 100); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}, ErrCorrupt, fault.Internal, "is damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "leases.db")
			test.prepare(t, path)
			before := snapshotDir(t, dir)
			s, err := Open(t.Context(), Options{Path: path})
			if err == nil {
				s.Close()
				t.Fatal("it was opened")
			}
			if !errors.Is(err, test.kind) {
				t.Errorf("error %v is not %v", err, test.kind)
			}
			f := wantCode(t, err, test.code)
			if !strings.Contains(f.Message, test.says) || !strings.Contains(f.Message, path) {
				t.Errorf("message %q says neither %q nor where", f.Message, test.says)
			}
			after := snapshotDir(t, dir)
			for name, content := range after {
				if before[name] != content {
					t.Errorf("%s was changed", name)
				}
			}
			if len(after) != len(before) {
				t.Errorf("files before: %d, after: %d", len(before), len(after))
			}
		})
	}
}

func TestPlacesThatCannotWork(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	remote := func(string) (string, bool, error) { return "nfs", true, nil }
	for name, test := range map[string]struct {
		o    Options
		kind error
		code fault.Code
		says string
	}{
		"relative":          {Options{Path: "leases.db"}, nil, fault.InvalidArgument, "not absolute"},
		"a directory":       {Options{Path: t.TempDir()}, nil, fault.InvalidArgument, "not a regular file"},
		"below a file":      {Options{Path: filepath.Join(file, "x", "leases.db")}, ErrReadOnly, fault.Internal, "cannot make the directory"},
		"on a network disk": {Options{Path: filepath.Join(t.TempDir(), "leases.db"), probe: remote}, ErrNetworkFS, fault.InvalidArgument, "cannot lie on nfs"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(t.Context(), test.o)
			if test.kind != nil && !errors.Is(err, test.kind) {
				t.Errorf("error %v is not %v", err, test.kind)
			}
			if err == nil || fault.CodeOf(err) != test.code || !strings.Contains(err.Error(), test.says) || len(fault.From(err).NextSteps) == 0 {
				t.Errorf("error %v (%s)", err, fault.CodeOf(err))
			}
		})
	}
}

func TestOddPaths(t *testing.T) {
	names := []string{"a b", "100%", "x#y", "ü", "'q'", "a&_pragma=x"}
	if runtime.GOOS != "windows" {
		names = append(names, "what?mode=memory", "new\nline", `back\slash`)
	}
	for _, name := range names {
		path := filepath.Join(t.TempDir(), name, "leases.db")
		makeDB(t, path)
		s := openAt(t, path, Options{})
		if live, err := s.Leases(t.Context(), LeaseFilter{}); err != nil || len(live) != 1 {
			t.Errorf("%q: %v %v", name, live, err)
		}
		if st, err := os.Stat(path); err != nil || st.Size() == 0 && s.path == path {
			t.Errorf("%q: the database is elsewhere: %v", name, err)
		}
	}
}

func TestModesAndPragmas(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := openAt(t, filepath.Join(dir, "leases.db"), Options{})
	admit(t, s)
	if runtime.GOOS != "windows" {
		for name, want := range map[string]os.FileMode{"": 0o700, "leases.db": 0o600, "leases.db-wal": 0o600, "leases.db-shm": 0o600} {
			if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != want {
				t.Errorf("%q: mode %v, want %v (%v)", name, st.Mode(), want, err)
			}
		}
	}
	for _, db := range []*sql.DB{s.writer, s.reader} {
		want := map[string]string{"journal_mode": "wal", "foreign_keys": "1"}
		if db == s.writer {
			want["synchronous"], want["auto_vacuum"] = "2", "2"
		} else {
			want["query_only"] = "1"
		}
		for pragma, want := range want {
			var got string
			if err := db.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
				t.Errorf("%s is %q, want %q (%v)", pragma, got, want, err)
			}
		}
	}
	i, err := s.Info(t.Context())
	if err != nil || i.SchemaVersion != SchemaVersion || i.JournalMode != "wal" || i.Leases != 1 || i.Events != 1 || i.SizeBytes == 0 || i.FileSystem == "" {
		t.Errorf("info %+v %v", i, err)
	}
}

// TestAFailedMigrationLeavesNothing puts another step after the real ones.
func TestAFailedMigrationLeavesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	makeDB(t, path)
	defer func(m []string, v int) { migrations, SchemaVersion = m, v }(migrations, SchemaVersion)
	migrations = append(slices.Clip(migrations), "CREATE TABLE half (x); INSERT INTO nowhere VALUES (1)")
	SchemaVersion = len(migrations)
	if _, err := Open(t.Context(), Options{Path: path}); err == nil || !strings.Contains(err.Error(), fmt.Sprint("migration ", SchemaVersion)) {
		t.Fatalf("error %v", err)
	}
	migrations[SchemaVersion-1] = "CREATE TABLE whole (x)"
	s := openAt(t, path, Options{})
	var half, whole, version int
	if err := s.reader.QueryRowContext(t.Context(), `SELECT
		(SELECT count(*) FROM sqlite_schema WHERE name = 'half'), (SELECT count(*) FROM sqlite_schema WHERE name = 'whole'),
		(SELECT user_version FROM pragma_user_version)`).Scan(&half, &whole, &version); err != nil {
		t.Fatal(err)
	}
	if half != 0 || whole != 1 || version != SchemaVersion {
		t.Errorf("half %d, whole %d, version %d", half, whole, version)
	}
	if live, err := s.Leases(t.Context(), LeaseFilter{}); err != nil || len(live) != 1 {
		t.Errorf("the migration lost leases: %v %v", live, err)
	}
}

func TestOpenHonoursItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := Open(ctx, Options{Path: filepath.Join(t.TempDir(), "leases.db")}); err == nil {
		s.Close()
		t.Error("opened with a context that had ended")
	}
}

func TestBackupAndCheck(t *testing.T) {
	s, _ := open(t)
	l := leaseIn(t, s, Running)
	dest := filepath.Join(t.TempDir(), "copy.db")
	if err := s.Backup(t.Context(), dest); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(filepath.Dir(dest)); err != nil || len(entries) != 1 {
		t.Errorf("the backup left more than itself: %v %v", entries, err)
	}
	if st, err := os.Stat(dest); err != nil || runtime.GOOS != "windows" && st.Mode().Perm() != 0o600 {
		t.Errorf("backup %v %v", st, err)
	}
	copied := openAt(t, dest, Options{})
	if got, err := copied.Lease(t.Context(), l.InstanceID); err != nil || got.Status != Running {
		t.Errorf("in the backup: %v %v", got.Status, err)
	}
	wantInvalid := s.Backup(t.Context(), dest)
	if !fault.Is(wantInvalid, fault.InvalidArgument) {
		t.Errorf("overwriting a backup: %v", wantInvalid)
	}
	if problems, err := s.Check(t.Context()); err != nil || len(problems) > 0 {
		t.Errorf("a sound database: %q %v", problems, err)
	}
	conn, err := s.writer.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{"PRAGMA foreign_keys = 0", "INSERT INTO task_tails VALUES ('task_none', 0, x'', x'')", "PRAGMA foreign_keys = 1"} {
		if _, err := conn.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	conn.Close()
	if problems, err := s.Check(t.Context()); err != nil || len(problems) != 1 || !strings.Contains(problems[0], "task_tails") {
		t.Errorf("an orphan: %q %v", problems, err)
	}
}
