package sandbox

import (
	"os"
	"path/filepath"
	"testing"

	"sandboxforge/internal/fault"
)

func TestOneDatabaseForTheVMsOfAHome(t *testing.T) {
	dir := t.TempDir()
	home, db := filepath.Join(dir, "home"), filepath.Join(dir, "leases.db")
	other := filepath.Join(dir, "other.db")
	for _, path := range []string{db, other} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "link.db")
	if err := os.Symlink(db, link); err != nil {
		t.Skip(err) // Windows without the right to
	}
	must := func(path string) {
		t.Helper()
		if err := claimHome(home, path); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	refused := func(path string) {
		t.Helper()
		if err := claimHome(home, path); !fault.Is(err, fault.InvalidArgument) {
			t.Fatalf("%s: %v", path, err)
		}
	}
	must(db)
	must(db)
	refused(other)
	refused(filepath.Join(dir, "new.db"))
	must(link) // the same file under another name
	must(db)
	if err := os.Remove(db); err != nil {
		t.Fatal(err)
	}
	must(other) // a database that is gone has no VMs
	refused(link + "x")
	left, err := filepath.Glob(filepath.Join(home, "state", ".*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
