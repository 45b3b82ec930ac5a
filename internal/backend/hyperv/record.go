package hyperv

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sandboxforge/internal/backend"
)

// Files in a VM's directory.
const (
	recordFile = "vm.json"
	diskFile   = "disk.vhdx"
	seedFile   = "seed.iso"
	endingFile = "ending" // there: somebody wants the VM to end
	hyperDir   = "hyper-v"
)

const maxRecord = 64 << 10

// record is what is known of a VM without asking Hyper-V.
type record struct {
	Spec      backend.Spec `json:"spec"`
	Machine   string       `json:"machine"` // its name in Hyper-V, which nobody else would choose
	Token     string       `json:"token"`   // of this VM, in its marker
	MAC       string       `json:"mac"`     // 12 hexadecimal digits
	ID        string       `json:"id,omitempty"`
	CreatedAt time.Time    `json:"created_at"`
	// Made is set last.
	Made bool `json:"made"`
}

func newRecord(s backend.Spec) record {
	token := randomHex(16)
	return record{Spec: s, Machine: s.Name + "-" + token[:12], Token: token, MAC: "02" + strings.ToUpper(token[12:22]), CreatedAt: time.Now().UTC()}
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// marker is what our machines have in their notes.
type marker struct {
	SandboxForge int    `json:"sandboxforge"`
	Store        string `json:"store"` // of the storage directory
	Name         string `json:"name"`  // of the VM
	Token        string `json:"token"`
}

// parseMarker reads the notes of a machine, which anybody may have edited.
func parseMarker(notes string) (m marker, ok bool) {
	err := json.Unmarshal([]byte(notes), &m)
	return m, err == nil && m.SandboxForge == 1 && m.Store != "" && m.Token != "" && backend.CheckName(m.Name) == nil
}

func (b *Backend) dir(name string) string { return filepath.Join(b.c.StorageDir, name) }

// readRecord reads the record of a VM: fs.ErrNotExist if there is no directory
// of it, another error for one that is damaged or without a record.
func (b *Backend) readRecord(name string) (record, error) {
	dir := b.dir(name)
	if st, err := os.Lstat(dir); err != nil || !st.IsDir() {
		return record{}, fmt.Errorf("no directory of the VM: %w", fs.ErrNotExist)
	}
	f, err := os.Open(filepath.Join(dir, recordFile))
	if err != nil {
		return record{}, errors.New("it has no record: its creation did not come to an end")
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return record{}, fmt.Errorf("its record cannot be read: %w", err)
	}
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return record{}, fmt.Errorf("its record is damaged: %w", err)
	}
	if r.Spec.Name != name || len(r.Token) != 32 {
		return record{}, errors.New("its record is of another VM")
	}
	return r, nil
}

func (b *Backend) writeRecord(r record) error {
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(b.dir(r.Spec.Name), recordFile), raw)
}

// writeFile replaces a file, whole or not at all.
func writeFile(path string, data []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return retryBusy(func() error { return os.Rename(path+".new", path) })
}

// storeID names the storage directory in markers, so that two of them on one
// host do not touch each other's machines.
func (b *Backend) storeID() (string, error) {
	path := filepath.Join(b.c.StorageDir, ".store")
	for range 100 {
		raw, err := os.ReadFile(path)
		if id := strings.TrimSpace(string(raw)); err == nil && len(id) == 32 {
			return id, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if err == nil {
			return "", fmt.Errorf("%s is damaged", path)
		}
		if err := os.MkdirAll(b.c.StorageDir, 0o700); err != nil {
			return "", err
		}
		// The link is what makes the first one win, with its file whole.
		tmp, err := os.CreateTemp(b.c.StorageDir, ".store-*")
		if err != nil {
			return "", err
		}
		_, err = tmp.WriteString(randomHex(16))
		err = errors.Join(err, tmp.Sync(), tmp.Close())
		if err == nil {
			if lerr := os.Link(tmp.Name(), path); lerr != nil && !errors.Is(lerr, fs.ErrExist) {
				err = lerr
			}
		}
		if err = errors.Join(err, os.Remove(tmp.Name())); err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("%s cannot be made", path)
}
