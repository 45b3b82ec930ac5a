package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"sandboxforge/internal/backend"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/host"
	"sandboxforge/internal/qmp"
)

// save is one saving of a VM.
type save struct {
	v      *vm
	dir    string // of the state
	record *vmRecord
	o      backend.SaveOptions
	parent string // state whose disk the saved one lies on
	layers int    // below it
	paused time.Time
	pause  time.Duration
	next   string // name of the disk that the guest writes to afterwards
	node   string // its block node
	added  bool   // QEMU knows the node
	moved  bool   // the guest writes to it: the VM needs the state's disk
}

// Save implements backend.Saver.
//
// The order is that of DESIGN: stop the guest, put a new disk layer on top,
// write the devices' state, copy the pages of the memory that are the guest's
// own, let it go on, and fill in the others from the file that they are pages
// of. xen-save-devices-state writes a state without the memory and, unlike
// migrate, from a VM whose memory file is a private mapping. Where the memory
// cannot be read, QEMU sends it; see transfer.
func (v *vm) Save(ctx context.Context, dir string, o backend.SaveOptions) (_ backend.SavedState, err error) {
	v.saving.Lock()
	defer v.saving.Unlock()
	v.stopFlattening()
	defer v.startFlattening()
	select {
	case <-v.done:
		return backend.SavedState{}, v.notRunning()
	default:
	}
	if !filepath.IsAbs(dir) {
		return backend.SavedState{}, fault.New(fault.InvalidArgument, "%.80q is not an absolute path", dir)
	}
	if v.unsure {
		return backend.SavedState{}, fault.New(fault.BackendCommandFailed, "the VM %s cannot be saved any more", v.name).
			Because("an earlier save lost QEMU's answer, so that nobody knows which disk the guest writes to").
			Next("take what is needed out of the VM, and make a new one")
	}
	if err := v.settleFlattening(ctx); err != nil {
		return backend.SavedState{}, err
	}
	if v.record.Layers >= maxLayers && !o.End {
		o.Progress.Report("save", "flattening the VM's disks")
		if err := v.flattenNow(ctx); err != nil {
			return backend.SavedState{}, err
		}
	}
	record := *v.record
	if record.Spec.MemoryFile && !o.End {
		return backend.SavedState{}, unsupportedSave("its memory is a file of its own: it can only be saved for good")
	}
	if v.accel.singleThread {
		return backend.SavedState{}, unsupportedSave("it runs in the cautious mode of emulation, after boots that failed")
	}
	s := &save{v: v, dir: dir, record: &record, o: o, parent: record.Parent, layers: record.Layers}
	if err := context.Cause(ctx); err != nil {
		return backend.SavedState{}, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return backend.SavedState{}, fault.Wrap(err, fault.InvalidArgument, "there is a saved state in %s already", dir)
		}
		return backend.SavedState{}, fault.Wrap(err, fault.BackendCommandFailed, "cannot make the directory of the saved state")
	}
	// Who wants to remove the state has to wait: a half-made one that is pulled
	// away would take the disk from under the guest's new one.
	lock, err := lockState(ctx, dir, true)
	if err != nil {
		os.RemoveAll(dir)
		return backend.SavedState{}, err
	}
	defer lock.Close()
	state, err := s.run(ctx)
	if err != nil {
		s.undo(ctx)
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			err = fault.Wrap(err, fault.InsufficientDisk, "no space on the host for the saved state of the VM %s", v.name).
				Next("free space, or remove snapshots that are not needed")
		}
		select {
		case <-v.done:
			return backend.SavedState{}, v.notRunning()
		default:
			return backend.SavedState{}, err
		}
	}
	return state, nil
}

func unsupportedSave(why string) error {
	return fault.Wrap(backend.ErrUnsupported, fault.UnsupportedByBackend, "the VM's state cannot be saved: %s", why)
}

// undo removes the state unless the VM needs its disk by now; then it stays
// half-made, as prepareDisk described it, and RemoveState removes it when the VM
// is gone. Nothing is written here: the disk may be full.
func (s *save) undo(ctx context.Context) {
	if s.moved {
		os.Remove(filepath.Join(s.dir, stateMemory))
		os.Remove(filepath.Join(s.dir, stateDevices))
		return
	}
	if s.added {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_ = s.do(ctx, "blockdev-del", map[string]any{"node-name": s.node}) // its name is not used again
	}
	if s.next != "" {
		os.Remove(filepath.Join(s.v.b.dir(s.v.name), s.next))
	}
	os.RemoveAll(s.dir)
}

func (s *save) run(ctx context.Context) (backend.SavedState, error) {
	v, o := s.v, s.o
	// Whatever becomes of the save: once the guest's disk lies on this state's,
	// it also needs the disk below that.
	if err := s.useParent(ctx); err != nil {
		return backend.SavedState{}, err
	}
	if err := s.prepareDisk(ctx); err != nil {
		return backend.SavedState{}, err
	}
	f, err := v.b.facts(ctx, v.bin, s.record.Image.Arch)
	if err != nil {
		return backend.SavedState{}, err
	}
	accel := accelerator{name: v.accel.name}
	key, err := v.b.stateKey(ctx, s.record.Spec, s.record.Image, accel.name)
	if err != nil {
		return backend.SavedState{}, err
	}
	var memory *memoryOf
	transfer := false
	if !s.record.Spec.MemoryFile {
		if memory, err = v.b.openMemory(v.run.process.pid(), v.memory); err != nil {
			v.b.c.Logger.Info("the memory of the VM cannot be read; QEMU is to send it", "vm", v.name, "error", err)
			transfer = true
		} else {
			defer memory.Close()
		}
	}
	if err := context.Cause(ctx); err != nil {
		return backend.SavedState{}, err
	}
	o.Progress.Report("save", "saving the VM's state")
	var runs [][2]int64
	if transfer {
		err = s.transfer(ctx)
	} else {
		runs, err = s.freeze(ctx, memory)
	}
	if err != nil {
		return backend.SavedState{}, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveLimit)
	defer cancel()
	if memory != nil {
		if err := s.fill(runs); err != nil {
			if o.End { // it did not, and stands still
				err = errors.Join(err, s.goOn(ctx))
			}
			return backend.SavedState{}, err
		}
	}
	if o.End {
		if err := v.Stop(ctx, 0); err != nil {
			return backend.SavedState{}, err
		}
	}
	return s.publish(ctx, f, key)
}

// saveLimit bounds what a save does while the guest stands still, and what it
// does afterwards.
const saveLimit = 5 * time.Minute

// do runs a QMP command.
func (s *save) do(ctx context.Context, command string, args any) error {
	if err := s.v.control.Do(ctx, command, args, nil); err != nil {
		return fault.Wrap(withShortage(err, err.Error()), fault.BackendCommandFailed, "QEMU refused %s while the VM %s was saved", command, s.v.name)
	}
	return nil
}

// goOn lets the guest run again, also when the time for the save is up. QEMU
// says that a migration has ended a moment before it has left the run state of
// one, in which it refuses to go on.
func (s *save) goOn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	for {
		var is struct {
			Status string `json:"status"`
		}
		if err := s.v.control.Do(ctx, "query-status", nil, &is); err != nil || is.Status != "finish-migrate" {
			break // cont has the better error
		}
		if err := pauseBriefly(ctx, time.Millisecond); err != nil {
			return fault.Wrap(err, fault.BackendCommandFailed, "QEMU does not end the migration of the VM %s, which stands still", s.v.name)
		}
	}
	return s.do(ctx, "cont", nil)
}

// useParent records the state as a user of the one whose disk it lies on.
func (s *save) useParent(ctx context.Context) error {
	if s.parent == "" {
		return nil
	}
	lock, err := lockState(ctx, s.parent, false)
	if err != nil {
		return err
	}
	defer lock.Close()
	return addUser(s.parent, s.dir, needsDisk)
}

// prepareDisk makes ready what the guest writes to after the save.
func (s *save) prepareDisk(ctx context.Context) error {
	if s.o.End {
		return nil
	}
	vdir := s.v.b.dir(s.v.name)
	for s.next == "" || s.next == filepath.Base(s.record.disk(vdir)) { // a VM that was started anew counts anew
		s.v.saves++
		s.node = "disk-" + strconv.Itoa(s.v.saves)
		s.next = s.node + ".qcow2"
	}
	next := filepath.Join(vdir, s.next)
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Hard links: the guest's disk gets a second name in the state, and the
	// running QEMU never sees one of its files move.
	if err := os.Link(s.record.disk(vdir), filepath.Join(s.dir, stateDisk)); err != nil {
		if errors.Is(err, unix.EXDEV) {
			return unsupportedSave("snapshots must lie on the file system of the VMs")
		}
		return err
	}
	size, err := s.v.diskSize(ctx)
	if err != nil {
		return err
	}
	// -u: the disk below is in use and need not be looked at.
	if _, err := s.v.b.runTool(ctx, s.v.b.qemuImg(), "create", "-q", "-u", "-f", "qcow2",
		"-F", "qcow2", "-b", filepath.Join(s.dir, stateDisk), "--", next, strconv.FormatInt(size, 10)); err != nil {
		return err
	}
	node := blockNode(s.node, next)
	node["backing"] = nil // the snapshot below gives it one
	if err := s.do(ctx, "blockdev-add", node); err != nil {
		return err
	}
	s.added = true
	// Before it is true, since afterwards it must not fail.
	if err := addUser(s.dir, vdir, needsDisk); err != nil {
		return err
	}
	half := stateRecord{Version: stateFormat, Saved: backend.SavedState{Parent: s.parent}}
	return writeJSON(filepath.Join(s.dir, removedFile), half, false)
}

// diskSize is the root disk's size as the guest may see it, in bytes.
func (v *vm) diskSize(ctx context.Context) (int64, error) {
	var nodes []struct {
		Name  string `json:"node-name"`
		Image struct {
			Size int64 `json:"virtual-size"`
		} `json:"image"`
	}
	if err := v.control.Do(ctx, "query-named-block-nodes", map[string]any{"flat": true}, &nodes); err != nil {
		return 0, err
	}
	for _, n := range nodes {
		if n.Name == v.node {
			return n.Image.Size, nil
		}
	}
	return 0, fmt.Errorf("QEMU has no block node %q", v.node)
}

// freeze stops the guest, takes what changes while it runs, and lets it go on.
func (s *save) freeze(ctx context.Context, memory *memoryOf) (runs [][2]int64, err error) {
	// From here on the caller's patience does not matter: the guest must go on.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveLimit)
	defer cancel()
	s.paused = time.Now()
	if err := s.do(ctx, "stop", nil); err != nil {
		return nil, err
	}
	defer func() {
		if !s.o.End || err != nil {
			err = errors.Join(err, s.goOn(ctx))
		}
		s.pause = time.Since(s.paused)
	}()
	if err := s.switchDisk(ctx); err != nil {
		return nil, err
	}
	if err := s.saveDevices(ctx); err != nil {
		return nil, err
	}
	if memory == nil {
		return nil, nil
	}
	to, err := os.OpenFile(filepath.Join(s.dir, stateMemory), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer to.Close()
	if err := to.Truncate(s.record.Spec.MemoryMiB << 20); err != nil {
		return nil, err
	}
	return memory.copyOwn(to)
}

// switchDisk has the guest, which stands still, write to its new disk from now
// on. It has a time of its own: a command that is cut off may be done or not.
func (s *save) switchDisk(ctx context.Context) error {
	if s.o.End {
		return nil
	}
	v := s.v
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), v.b.limits.diskSwitch)
	defer cancel()
	if err := s.do(ctx, "blockdev-snapshot", map[string]any{"node": v.node, "overlay": s.node}); err != nil {
		var refused *qmp.Error
		if errors.As(err, &refused) {
			return err
		}
		switched, unknown := s.switched(ctx)
		if unknown != nil {
			// Nothing that the guest may be writing to is removed.
			s.moved, v.unsure = true, true
			return errors.Join(err, unknown)
		}
		if !switched {
			return err
		}
		v.b.c.Logger.Warn("QEMU did not answer, and the guest has its new disk", "vm", v.name, "error", err)
	}
	// The VM needs the state's disk from now on, whatever becomes of the save.
	vdir := v.b.dir(v.name)
	old := s.record.disk(vdir)
	s.record.Disk, s.record.Parent = s.next, s.dir
	s.record.Layers++
	s.moved = true
	v.node, v.record = s.node, s.record
	if err := writeJSON(filepath.Join(vdir, vmFile), s.record, false); err != nil {
		return err
	}
	os.Remove(old) // its other name is the state's
	return nil
}

// switched asks QEMU whether the new disk lies on the one that the guest had,
// also when ctx has ended. Until it does, it lies on nothing.
func (s *save) switched(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	nodes, err := s.v.blockNodes(ctx)
	if err != nil {
		return false, err
	}
	old, ok := nodes[s.v.node]
	next, there := nodes[s.node]
	switch {
	case ok && there && next.Depth == 0:
		return false, nil
	case ok && there && next.Depth == old.Depth+1:
		return true, nil
	}
	return false, fmt.Errorf("QEMU does not say whether the disk %s lies on %s", s.node, s.v.node)
}

// saveDevices writes the state of all but memory and disk.
func (s *save) saveDevices(ctx context.Context) error {
	return s.do(ctx, "xen-save-devices-state", map[string]any{"filename": filepath.Join(s.dir, stateDevices), "live": false})
}

// fill completes the memory with the pages that the guest has in common with
// the state it began in.
func (s *save) fill(runs [][2]int64) error {
	from, err := os.Open(s.v.memory)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(s.dir, stateMemory), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer to.Close()
	return fillFrom(to, from, runs)
}

// publish completes the state.
func (s *save) publish(ctx context.Context, f facts, key string) (backend.SavedState, error) {
	v := s.v
	vdir := v.b.dir(v.name)
	if s.o.End {
		// The VM has ended: what it had is the state's.
		if s.record.Spec.MemoryFile {
			if err := moveFile(filepath.Join(vdir, memoryFile), filepath.Join(s.dir, stateMemory)); err != nil {
				return backend.SavedState{}, err
			}
		}
		if err := moveFile(s.record.disk(vdir), filepath.Join(s.dir, stateDisk)); err != nil {
			return backend.SavedState{}, err
		}
	}
	spec := s.record.Spec
	spec.From, spec.MemoryFile = "", false
	disk, err := v.b.inspectDisk(ctx, filepath.Join(s.dir, stateDisk), "qcow2")
	if err != nil {
		return backend.SavedState{}, err
	}
	r := stateRecord{
		Version: stateFormat, Image: s.record.Image, Machine: f.Machine, Accel: v.accel.name,
		Cmdline: v.cmdline, Layers: s.layers, Boot: hostBootID(), Files: map[string]fileMark{},
		Saved: backend.SavedState{
			Key: key, Spec: spec, Accelerator: v.accel.String(), CreatedAt: time.Now().UTC(), Pause: s.pause,
			DiskSize: disk.VirtualSize, Parent: s.parent,
		},
	}
	for _, name := range []string{stateMemory, stateDevices, stateDisk} {
		path := filepath.Join(s.dir, name)
		mark, err := markOf(path)
		if err != nil {
			return backend.SavedState{}, err
		}
		r.Files[name] = mark
	}
	// To write and read a gigabyte takes too long for an agent that waits for
	// its fork: only what is made to last is settled.
	if s.o.End {
		if err := settleFiles(ctx, s.dir, &r); err != nil {
			return backend.SavedState{}, err
		}
	}
	r.Saved.MemoryBytes, r.Saved.DiskBytes = host.FileAllocated(filepath.Join(s.dir, stateMemory)), host.FileAllocated(filepath.Join(s.dir, stateDisk))
	// In place of the description of what is half-made, so that there is always
	// one of the two.
	half := filepath.Join(s.dir, removedFile)
	err = writeJSON(half, r, s.o.End)
	if err == nil {
		err = os.Rename(half, filepath.Join(s.dir, stateFile))
	}
	if err == nil && s.o.End {
		err = syncDir(s.dir)
	}
	if err != nil {
		return backend.SavedState{}, err
	}
	v.b.setVerified(s.dir)
	r.Saved.Dir = s.dir
	return r.Saved, nil
}

// moveFile renames a file, or copies it where it has to go to another file
// system.
func moveFile(from, to string) error {
	err := os.Rename(from, to)
	if !errors.Is(err, unix.EXDEV) {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	st, err := src.Stat()
	if err != nil {
		return err
	}
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = dst.Truncate(st.Size()); err == nil {
		err = fillFrom(dst, src, nil)
	}
	if err = errors.Join(err, dst.Sync(), dst.Close()); err != nil {
		os.Remove(to)
		return err
	}
	return os.Remove(from)
}
