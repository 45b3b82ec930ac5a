//go:build unix

package lima

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"sandboxforge/internal/backend"
)

// Files of a VM's directory.
const (
	vmFile      = "vm.json"
	ownerFile   = "owner.lock" // held by the process that has the Machine
	endFile     = "ending"     // somebody asked for the end
	startLog    = "start.log"  // of the last limactl start
	hostKeyFile = "host_key"   // that the guest showed at the last start
)

// vmRecord is vm.json.
type vmRecord struct {
	Version   int          `json:"version"`
	Spec      backend.Spec `json:"spec"`
	Whole     bool         `json:"whole"` // its instance was made
	CreatedAt time.Time    `json:"created_at"`
}

const recordVersion = 1

func (b *Backend) dir(name string) string         { return filepath.Join(b.cfg.StateDir, name) }
func (b *Backend) instanceDir(name string) string { return filepath.Join(b.cfg.LimaHome, name) }

// record reads a VM's record; ErrNotFound if there is no directory.
func (b *Backend) record(name string) (r vmRecord, err error) {
	if st, err := os.Lstat(b.dir(name)); err != nil || !st.IsDir() {
		return r, notFound(name)
	}
	if err := readJSON(filepath.Join(b.dir(name), vmFile), &r); err != nil {
		return r, fmt.Errorf("%w: %w", errHalf, err)
	}
	if r.Version != recordVersion {
		return r, fmt.Errorf("%w: its record has the version %d", errHalf, r.Version)
	}
	if !r.Whole {
		return r, fmt.Errorf("%w: its instance was not finished", errHalf)
	}
	return r, nil
}

// errHalf: a creation did not come to its end.
var errHalf = errors.New("the VM was not made completely")

const maxRecord = 1 << 20

func readJSON(path string, v any) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// writeJSON replaces a file by rename.
func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
