package config

import (
	"os"
	"path/filepath"
	"testing"
)

func TestOldDatabase(t *testing.T) {
	const magic = "SQLite format 3\x00"
	for _, c := range []struct {
		name    string
		content string // of state/leases.db; "" for no file, "dir" for a directory
		uses    string // LeaseDBPath, from the directory
		found   bool
	}{
		{"none", "", "other.db", false},
		{"an old database", magic + "rest", "other.db", true},
		{"the one in use", magic + "rest", "state/leases.db", false},
		{"the one in use, through a link", magic + "rest", "link/leases.db", false},
		{"another one is in use and there", magic + "rest", "file", true},
		{"no database", "leases: none, really none", "other.db", false},
		{"shorter than a header", magic[:8], "other.db", false},
		{"a directory", "dir", "other.db", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "state", "leases.db")
			must := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			must(os.Mkdir(filepath.Dir(path), 0o755))
			must(os.WriteFile(filepath.Join(dir, "file"), []byte(magic), 0o600))
			switch c.content {
			case "":
			case "dir":
				must(os.Mkdir(path, 0o755))
			default:
				must(os.WriteFile(path, []byte(c.content), 0o600))
			}
			if c.uses == "link/leases.db" {
				if err := os.Symlink(filepath.Dir(path), filepath.Join(dir, "link")); err != nil {
					t.Skip(err) // Windows without the right to
				}
			}
			want := ""
			if c.found {
				want = path
			}
			if got := OldDatabase(dir, &Settings{LeaseDBPath: filepath.Join(dir, c.uses)}); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}
