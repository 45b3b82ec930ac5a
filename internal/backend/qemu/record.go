//go:build linux

package qemu

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
	runFile     = "run.json"
	diskFile    = "disk.qcow2" // the first; see vmRecord.Disk
	memoryFile  = "memory"
	lockFile    = "vm.lock"
	logFile     = "qemu.log"
	consoleFile = "console.log"
)

// vmRecord is vm.json. Its presence says that the VM is whole.
type vmRecord struct {
	Version   int          `json:"version"`
	Spec      backend.Spec `json:"spec"`
	Image     Image        `json:"image"`
	DiskBytes int64        `json:"disk_bytes"` // the disk's real virtual size
	// Disk is the file that the guest writes to, in the VM's directory. Each
	// save of a VM that goes on begins a new one over the saved one.
	Disk string `json:"disk,omitempty"` // empty: diskFile
	// Parent is the saved state whose disk lies directly below; empty: none.
	// Layers is how many such disks there are down to the image's.
	Parent    string    `json:"parent,omitempty"`
	Layers    int       `json:"layers,omitempty"`
	DiskFrom  int64     `json:"disk_from,omitempty"` // the disk's size in the saved state that the VM begins in
	CreatedAt time.Time `json:"created_at"`
}

const vmRecordVersion = 1

// disk is the path of the disk that the guest of the VM in dir writes to.
func (r *vmRecord) disk(dir string) string {
	if r.Disk == "" {
		return filepath.Join(dir, diskFile)
	}
	return filepath.Join(dir, filepath.Base(r.Disk))
}

// runRecord is run.json: the last start. It is a hint; only the lock says
// whether the VM runs.
type runRecord struct {
	PID        int       `json:"pid"`
	StartTicks uint64    `json:"start_ticks"` // of the process, from /proc: a pid alone is reused
	Accel      string    `json:"accel"`
	StartedAt  time.Time `json:"started_at"`
}

// maxRecord bounds what is read of a record; the files are ours, but a damaged
// one must not take the server with it.
const maxRecord = 1 << 20

func readJSON(path string, v any) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s is damaged: %w", filepath.Base(path), err)
	}
	return nil
}

// writeJSON replaces a file atomically, and durably if sync is set.
func writeJSON(path string, v any, sync bool) (err error) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(b)
	if err == nil && sync {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil || !sync {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// readVM reads and checks vm.json of the VM in dir.
func readVM(dir, name string) (*vmRecord, error) {
	var r vmRecord
	if err := readJSON(filepath.Join(dir, vmFile), &r); err != nil {
		return nil, err
	}
	switch {
	case r.Version != vmRecordVersion:
		return nil, fmt.Errorf("%s has the unknown version %d", vmFile, r.Version)
	case r.Spec.Name != name:
		return nil, fmt.Errorf("%s is of the VM %.60q", vmFile, r.Spec.Name)
	}
	return &r, nil
}
