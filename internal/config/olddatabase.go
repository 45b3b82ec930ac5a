package config

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// sqliteMagic begins every SQLite database.
var sqliteMagic = []byte("SQLite format 3\x00")

// OldDatabase returns the path of a lease database below dir, where the Python
// version kept its own (state/leases.db of the working directory), "" if there
// is none or s uses that very file. It is for a warning: nothing reads it.
func OldDatabase(dir string, s *Settings) string {
	path := filepath.Join(dir, "state", "leases.db")
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	if used, err := os.Stat(s.LeaseDBPath); err == nil && os.SameFile(info, used) {
		return ""
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may be a FIFO by now
	if err != nil {
		return ""
	}
	defer f.Close()
	head := make([]byte, len(sqliteMagic))
	if _, err := io.ReadFull(f, head); err != nil || !bytes.Equal(head, sqliteMagic) {
		return ""
	}
	return path
}
