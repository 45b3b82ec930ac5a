package workspace

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"sandboxforge/internal/hostpath"
)

// A manifest file is: magic, then for every path in order its length-prefixed
// fields, then the SHA-256 of all that. It is written whole, by rename, and
// synced. One that cannot be read for whatever reason counts as absent, which
// is the careful case: nothing is deleted, everything is compared by content.

const manifestMagic = "sandboxforge sync manifest 1\n"

// maxManifest bounds a manifest file, in bytes.
const maxManifest = 1 << 30

var errManifest = errors.New("the manifest is damaged")

// manifestPath names the manifest of a pair of directories.
func manifestPath(dir, local, remote string) string {
	sum := sha256.Sum256([]byte(local + "\x00" + remote))
	return filepath.Join(dir, hex.EncodeToString(sum[:12])+".manifest")
}

// ForgetManifests removes all manifests below dir, so that the next sync
// starts without an ancestor. A missing directory is success.
func ForgetManifests(dir string) error {
	list, err := filepath.Glob(filepath.Join(dir, "*.manifest"))
	if err != nil {
		return err
	}
	for _, p := range list {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// CopyManifests copies all manifests below one directory to another, which is
// made. A guest that is a copy of another, taken afterwards, can then be synced
// as if its syncs had been its own: a manifest that is older than its guest is
// like one of a sync that was interrupted. A missing source is success. The
// copies are lost when the host crashes, unless SettleManifests was called.
func CopyManifests(from, to string) error {
	list, err := filepath.Glob(filepath.Join(from, "*.manifest"))
	if err != nil || len(list) == 0 {
		return err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, p := range list {
		b, err := os.ReadFile(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, filepath.Base(p)), b, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// SettleManifests has all manifests below dir, and their names, written to the
// disk: a copy that is to outlive the host's boot would else be empty after a
// crash, which counts as none. A missing directory is success.
func SettleManifests(dir string) error {
	list, err := filepath.Glob(filepath.Join(dir, "*.manifest"))
	if err != nil || len(list) == 0 {
		return err
	}
	for _, p := range list {
		f, err := os.OpenFile(p, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return syncDir(dir)
}

func loadManifest(path string) map[string]*Ancestor {
	info, err := os.Stat(path)
	if err != nil || info.Size() > maxManifest {
		return map[string]*Ancestor{}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return map[string]*Ancestor{}
	}
	m, err := decodeManifest(data)
	if err != nil {
		return map[string]*Ancestor{}
	}
	return m
}

// saveManifest replaces the manifest file. It is not cancellable: it is the
// last word on what happened.
func saveManifest(path string, m map[string]*Ancestor) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".manifest-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(encodeManifest(m))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("the sync manifest cannot be written: %w", err)
	}
	return syncDir(filepath.Dir(path))
}

const (
	bitExec = 1 << iota
	bitPut
	bitPending
)

func encodeManifest(m map[string]*Ancestor) []byte {
	b := make([]byte, 0, len(manifestMagic)+len(m)*140+64)
	b = append(b, manifestMagic...)
	b = binary.AppendUvarint(b, uint64(len(m)))
	text := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	stamp := func(s Stamp) {
		b = binary.AppendVarint(b, s.Size)
		b = binary.AppendVarint(b, s.MTime)
		b = binary.AppendVarint(b, s.CTime)
		b = binary.AppendUvarint(b, s.Inode)
	}
	for _, p := range slices.Sorted(maps.Keys(m)) {
		a := m[p]
		text(p)
		var flags byte
		if a.Exec {
			flags |= bitExec
		}
		if a.Put {
			flags |= bitPut
		}
		if a.Pending {
			flags |= bitPending
		}
		b = append(b, byte(a.Kind), flags)
		switch a.Kind {
		case File:
			b = binary.AppendVarint(b, a.Size)
			b = append(b, a.Hash[:]...)
			stamp(a.Host)
			stamp(a.Guest)
		case Symlink:
			text(a.Target)
		}
	}
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

func decodeManifest(data []byte) (map[string]*Ancestor, error) {
	body, ok := bytes.CutPrefix(data, []byte(manifestMagic))
	if !ok || len(body) < sha256.Size {
		return nil, errManifest
	}
	end := len(data) - sha256.Size
	if sha256.Sum256(data[:end]) != [sha256.Size]byte(data[end:]) {
		return nil, errManifest
	}
	r := &manifestReader{b: body[:len(body)-sha256.Size]}
	n := r.uvarint()
	if n > uint64(len(r.b)) { // an entry has more than one byte
		return nil, errManifest
	}
	m := make(map[string]*Ancestor, n)
	last := ""
	for range n {
		p := r.text()
		a := &Ancestor{Kind: Kind(r.byte())}
		flags := r.byte()
		a.Exec, a.Put, a.Pending = flags&bitExec != 0, flags&bitPut != 0, flags&bitPending != 0
		switch a.Kind {
		case File:
			a.Size = r.varint()
			copy(a.Hash[:], r.take(sha256.Size))
			a.Host, a.Guest = r.stamp(), r.stamp()
		case Symlink:
			a.Target = r.text()
		case Dir:
		default:
			r.bad = true
		}
		if r.bad || p <= last || hostpath.CheckRel(p) != nil || p == "." || a.Size < 0 || flags >= bitPending<<1 {
			return nil, errManifest
		}
		last = p
		m[p] = a
	}
	if r.bad || len(r.b) != 0 {
		return nil, errManifest
	}
	return m, nil
}

// manifestReader takes fields off a buffer; after a mistake bad is set and all
// fields are zero.
type manifestReader struct {
	b   []byte
	bad bool
}

func (r *manifestReader) take(n uint64) []byte {
	if r.bad || n > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *manifestReader) byte() byte {
	if v := r.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (r *manifestReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *manifestReader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *manifestReader) text() string { return string(r.take(r.uvarint())) }

func (r *manifestReader) stamp() Stamp {
	return Stamp{Size: r.varint(), MTime: r.varint(), CTime: r.varint(), Inode: r.uvarint()}
}
