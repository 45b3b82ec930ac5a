package qemu

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
)

// Files of a saved state's directory. The memory is a whole image of the
// guest's RAM, the disk a qcow2 layer over another state's or an image's root.
const (
	stateFile    = "state.json" // written last: without it the state is half-made
	stateMemory  = "memory"
	stateDevices = "devices"
	stateDisk    = "disk.qcow2"
	removedFile  = "removed.json" // instead of stateFile: only the disk counts, for its users
	stateUsers   = "users"        // one symbolic link to each directory that needs the state
	stateLock    = "lock"         // held shared while a user is added, whole to remove
	verifiedFile = "verified"     // the boot of the host in which everything was read
)

// stateFormat is part of every key: another way of saving makes other states.
const stateFormat = 1

// stateRecord is state.json.
type stateRecord struct {
	Version int                 `json:"version"`
	Saved   backend.SavedState  `json:"saved"` // without Dir, which is where it lies
	Image   Image               `json:"image"`
	Machine string              `json:"machine"` // versioned type
	Accel   string              `json:"accel"`
	Cmdline string              `json:"cmdline"`
	Layers  int                 `json:"layers"` // of saved disks below the state's
	Boot    string              `json:"boot"`   // of the host, when it was saved
	Files   map[string]fileMark `json:"files"`
}

// fileMark tells a file from another one that took its place.
type fileMark struct {
	Inode  uint64 `json:"inode"`
	Size   int64  `json:"size"`
	MTime  int64  `json:"mtime"`
	Digest string `json:"digest,omitempty"` // empty: the state is not settled
}

func markOf(path string) (fileMark, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fileMark{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fileMark{}, fmt.Errorf("%s is not a regular file", path)
	}
	return fileMark{Inode: st.Ino, Size: st.Size, MTime: st.Mtim.Nano()}, nil
}

func readState(dir string) (*stateRecord, error) {
	var r stateRecord
	if err := readJSON(filepath.Join(dir, stateFile), &r); err != nil {
		return nil, err
	}
	if r.Version != stateFormat {
		return nil, fmt.Errorf("%s has the unknown version %d", stateFile, r.Version)
	}
	r.Saved.Dir = dir
	return &r, nil
}

func unfit(err error, dir, format string, args ...any) error {
	e := backend.ErrStateUnfit
	if err != nil {
		e = fmt.Errorf("%w: %w", backend.ErrStateUnfit, err)
	}
	return fault.Wrap(e, fault.BackendCommandFailed, "the saved state in %s cannot be used: %s", dir, fmt.Sprintf(format, args...))
}

// StateKey implements backend.StateKeeper.
func (b *Backend) StateKey(ctx context.Context, s backend.Spec) (string, error) {
	if err := s.Check(); err != nil {
		return "", err
	}
	img, err := b.find(s.Image, arch(s))
	if err != nil {
		return "", err
	}
	v, err := b.accelFor(ctx, img, nil)
	if err != nil {
		return "", err
	}
	return b.stateKey(ctx, s, img, v.Accel)
}

// stateKey is a digest of everything that can differ between the machine that
// was saved and one that loads it.
func (b *Backend) stateKey(ctx context.Context, s backend.Spec, img Image, accel string) (string, error) {
	bin, err := b.binary(img.Arch)
	if err != nil {
		return "", err
	}
	st, err := os.Stat(bin)
	if err != nil {
		return "", err
	}
	f, err := b.facts(ctx, bin, img.Arch)
	if err != nil {
		return "", err
	}
	m := machine{arch: img.Arch, typ: f.Machine, accel: accelerator{name: accel}}
	key := struct {
		Format                         int
		Image, Arch, Cmdline           string
		QEMU, Version, Machine, Accel  string
		CPU, Host                      string
		CPUs                           int
		MemoryMiB, QEMUSize, QEMUMTime int64
		Firmware                       []string
	}{
		stateFormat, img.Digest, img.Arch, img.Cmdline, bin, f.Version, m.machineType(), m.accelArg(),
		m.cpuModel(), hostCPU(accel), s.CPUs, s.MemoryMiB, st.Size(), st.ModTime().UnixNano(), firmware(f.DataDirs),
	}
	j, err := json.Marshal(key)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(j)
	return hex.EncodeToString(sum[:]), nil
}

// firmware lists the files that QEMU gives such a guest, whose memory they are
// part of.
func firmware(dirs []string) (list []string) {
	for _, dir := range dirs {
		for _, name := range []string{"bios-256k.bin", "linuxboot_dma.bin", "pvh.bin", "kvmvapic.bin", "edk2-aarch64-code.fd"} {
			if m, err := os.Stat(filepath.Join(dir, name)); err == nil {
				list = append(list, fmt.Sprintf("%s/%s %d %d", dir, name, m.Size(), m.ModTime().UnixNano()))
			}
		}
	}
	return list
}

// hostCPU is what a guest under KVM sees of the host; an emulated one sees
// nothing of it.
func hostCPU(accel string) string {
	if accel != "kvm" {
		return ""
	}
	var uts unix.Utsname
	_ = unix.Uname(&uts) // cannot fail with a valid pointer
	out := []string{unix.ByteSliceToString(uts.Release[:]), unix.ByteSliceToString(uts.Version[:])}
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if strings.TrimSpace(line) == "" {
			break // the other processors are like the first
		}
		k, _, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(k) {
		case "model name", "flags", "microcode", "stepping", "Features", "CPU part", "CPU revision":
			out = append(out, strings.TrimSpace(line))
		}
	}
	return strings.Join(out, "\n")
}

// CheckState implements backend.StateKeeper.
func (b *Backend) CheckState(ctx context.Context, dir string) (backend.SavedState, error) {
	r, err := b.checkState(ctx, dir)
	if err != nil {
		return backend.SavedState{}, err
	}
	return r.Saved, nil
}

func (b *Backend) checkState(ctx context.Context, dir string) (*stateRecord, error) {
	r, err := readState(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, unfit(err, dir, "it is missing or half-made")
	}
	if err != nil {
		return nil, unfit(err, dir, "%v", err)
	}
	if err := checkImage(r.Image); err != nil {
		return nil, unfit(err, dir, "its image is missing")
	}
	if r.Saved.Parent != "" {
		if _, err := os.Stat(filepath.Join(r.Saved.Parent, stateDisk)); err != nil {
			return nil, unfit(err, dir, "the state whose disk it needs is missing")
		}
	}
	key, err := b.stateKey(ctx, r.Saved.Spec, r.Image, r.Accel)
	if err != nil {
		return nil, err
	}
	if key != r.Saved.Key {
		return nil, unfit(nil, dir, "it was made under another QEMU, processor or kernel of the host, or of another image")
	}
	if v, err := b.accelFor(ctx, r.Image, nil); err != nil {
		return nil, err
	} else if v.Accel != r.Accel {
		return nil, unfit(nil, dir, "it was made under %s, and VMs run under %s", r.Accel, v.Accel)
	}
	deep := !b.verified(dir)
	for _, name := range []string{stateMemory, stateDevices, stateDisk} {
		path, want := filepath.Join(dir, name), r.Files[name]
		got, err := markOf(path)
		if err != nil {
			return nil, unfit(err, dir, "%v", err)
		}
		want.Digest, got.Digest = "", ""
		if got != want {
			return nil, unfit(nil, dir, "its file %s is not the one that was made", name)
		}
		if r.Files[name].Digest == "" && r.Boot != hostBootID() {
			// It may never have reached the disk, and has its size all the same.
			return nil, unfit(nil, dir, "the host was booted before it was settled")
		}
		if want := r.Files[name].Digest; deep && want != "" {
			got, err := digestFile(ctx, path)
			if err != nil {
				if cause := context.Cause(ctx); cause != nil {
					return nil, cause
				}
				return nil, unfit(err, dir, "%v", err)
			}
			if got != want {
				return nil, unfit(nil, dir, "its file %s is damaged", name)
			}
		}
	}
	if deep {
		b.setVerified(dir)
	}
	return r, nil
}

// verified says whether everything was read in this boot of the host.
func (b *Backend) verified(dir string) bool {
	boot, err := os.ReadFile(filepath.Join(dir, verifiedFile))
	return err == nil && string(boot) == hostBootID()
}

func (b *Backend) setVerified(dir string) {
	if err := os.WriteFile(filepath.Join(dir, verifiedFile), []byte(hostBootID()), 0o600); err != nil {
		b.c.Logger.Warn("the check of a saved state is not remembered", "dir", dir, "error", err)
	}
}

// lockState takes a state's lock, shared or whole; close the file to release
// it. It fails with fs.ErrNotExist if the state's directory is gone.
func lockState(ctx context.Context, dir string, whole bool) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, stateLock), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	how := unix.LOCK_SH
	if whole {
		how = unix.LOCK_EX
	}
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			// A remover may have been faster: then this is the lock of nothing,
			// or of a state that was made in the place since.
			mine, err := f.Stat()
			if err == nil {
				var now os.FileInfo
				if now, err = os.Lstat(filepath.Join(dir, stateLock)); err == nil && !os.SameFile(mine, now) {
					err = fs.ErrNotExist
				}
			}
			if err != nil {
				f.Close()
				return nil, err
			}
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, os.NewSyscallError("flock", err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// What a user needs of a state.
const (
	needsAll  = "all"  // memory, devices and disk
	needsDisk = "disk" // its disk is below the user's
)

// addUser records that user, the directory of a VM or of a saved state, needs
// the state in dir. The caller holds the state's lock. The record counts as
// long as the user's directory is there.
func addUser(dir, user, needs string) error {
	users := filepath.Join(dir, stateUsers)
	if err := os.Mkdir(users, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	err := os.Symlink(user, userLink(dir, user, needs))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// userLink is where addUser records a user.
func userLink(dir, user, needs string) string {
	sum := sha256.Sum256([]byte(user))
	return filepath.Join(dir, stateUsers, needs+"-"+hex.EncodeToString(sum[:8]))
}

// usersOf lists who needs a state and forgets those that are gone. That it
// cannot be told is an error, never nobody.
func usersOf(dir string) (all, disk []string, err error) {
	entries, err := os.ReadDir(filepath.Join(dir, stateUsers))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		link := filepath.Join(dir, stateUsers, e.Name())
		user, err := os.Readlink(link)
		if errors.Is(err, fs.ErrNotExist) {
			continue // forgotten meanwhile
		}
		if err != nil {
			return nil, nil, err
		}
		if _, err := os.Lstat(user); errors.Is(err, fs.ErrNotExist) {
			os.Remove(link) //nolint:errcheck // tried again next time
			continue
		}
		if strings.HasPrefix(e.Name(), needsDisk+"-") {
			disk = append(disk, user)
		} else {
			all = append(all, user)
		}
	}
	slices.Sort(all)
	slices.Sort(disk)
	return all, disk, nil
}

// StateUsers lists the directories of the VMs and saved states that need a
// saved state.
func (b *Backend) StateUsers(_ context.Context, dir string) ([]string, error) {
	all, disk, err := usersOf(dir)
	if err != nil {
		return nil, err
	}
	users := append(all, disk...)
	slices.Sort(users)
	return slices.Compact(users), nil
}

// RemoveState implements backend.StateKeeper.
func (b *Backend) RemoveState(ctx context.Context, dir string) error {
	return b.removeState(ctx, dir, false)
}

// removeState is RemoveState; with restOnly for what was removed already while
// others needed its disk, and not for what turns out whole once its lock is had.
func (b *Backend) removeState(ctx context.Context, dir string, restOnly bool) error {
	if !filepath.IsAbs(dir) {
		return fault.New(fault.InvalidArgument, "%.80q is not the absolute path of a saved state", dir)
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := lockState(ctx, dir, true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	all, disk, err := usersOf(dir)
	if err != nil {
		return fault.Wrap(err, fault.BackendCommandFailed, "cannot tell who needs the saved state %s", dir)
	}
	if len(all) > 0 {
		return &backend.InUseError{Dir: dir, Users: all}
	}
	gone := filepath.Join(dir, removedFile)
	if _, err := os.Lstat(gone); restOnly && err != nil {
		return nil
	}
	// Nothing begins in it from here on.
	if err := os.Rename(filepath.Join(dir, stateFile), gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.Wrap(err, fault.BackendCommandFailed, "cannot remove the saved state %s", dir)
	}
	if len(disk) == 0 {
		var r stateRecord
		_ = readJSON(gone, &r) // a half-made one has no parent that anybody knows
		if err := os.RemoveAll(dir); err != nil {
			return fault.Wrap(err, fault.BackendCommandFailed, "cannot remove the saved state %s", dir)
		}
		return b.collect(ctx, r.Saved.Parent)
	}
	for _, name := range []string{stateMemory, stateDevices, verifiedFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fault.Wrap(err, fault.BackendCommandFailed, "cannot remove %s of the saved state %s", name, dir)
		}
	}
	return nil
}

// collect removes the rest of a state that was removed while others needed its
// disk, if nobody does any more.
func (b *Backend) collect(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(dir, removedFile)); err != nil {
		return nil // it is whole, or gone
	}
	return b.removeState(ctx, dir, true) // or is being saved, and then whole
}

// useState checks the state that a VM is to begin in and records the VM as its
// user.
func (b *Backend) useState(ctx context.Context, s backend.Spec, user string) (*stateRecord, error) {
	lock, err := lockState(ctx, s.From, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, unfit(err, s.From, "it is missing")
	}
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	r, err := b.checkState(ctx, s.From)
	if err != nil {
		return nil, err
	}
	of := r.Saved.Spec
	if of.CPUs != s.CPUs || of.MemoryMiB != s.MemoryMiB || arch(of) != arch(s) || of.Image != s.Image {
		return nil, fault.New(fault.InvalidArgument, "the saved state in %s is of a VM with other processors, memory or image", s.From)
	}
	return r, addUser(s.From, user, needsAll)
}
