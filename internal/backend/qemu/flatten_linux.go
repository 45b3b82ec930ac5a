package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/host"
	"sandboxforge/internal/qmp"
)

// Each save of a VM that goes on adds a disk to the chain below the guest's. A
// chain that has become long is flattened while the guest runs: what the disks
// between the guest's and the lowest saved one have is copied into the guest's,
// which lies on the lowest then. The states whose disks those are do not change,
// and those that nobody else needs go.

const (
	// maxLayers bounds the chain: a VM with so many disks below its own is
	// flattened before it is saved again, and the save waits for it.
	maxLayers = 32
	// flattenLayers is from where on that is done in the background.
	flattenLayers = 9
	// flattenSpeed bounds what the background may copy, in bytes a second.
	flattenSpeed = 64 << 20
	// flattenDelay is how long a VM must have been left alone: a fork's child
	// has better things to do at first, and a save ends a flattening.
	flattenDelay = 10 * time.Second
	// flattenRoom is what has to stay free on the host's disk, in bytes.
	flattenRoom = 1 << 30
	// flattenJob is the job's name in QEMU.
	flattenJob = "flatten"
	// jobEnd is how long a job that was cancelled may take to end, and QEMU to
	// tell of one again after it failed to.
	jobEnd = 30 * time.Second
)

// flattener is the flattening of a VM's chain in the background. While it works
// no save does, see Save; so both may change record and node.
type flattener struct {
	mu     sync.Mutex
	ended  bool               // the VM is, so nothing starts any more
	cancel context.CancelFunc // of the one that is under way or waits to begin; nil: none
	done   chan struct{}      // closed when it has ended
}

// startFlattening begins one in the background, after a while, if the chain is
// long. The caller has the VM to itself.
func (v *vm) startFlattening() {
	if v.record.Layers < flattenLayers || v.unsure {
		return
	}
	f := &v.flat
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || f.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	f.cancel, f.done = cancel, done
	delay, speed := v.b.limits.flattenDelay, v.b.limits.flattenSpeed
	go func() {
		defer close(done)
		if pauseBriefly(ctx, delay) != nil {
			return
		}
		if err := v.flatten(ctx, speed); err != nil && ctx.Err() == nil {
			v.b.c.Logger.Warn("the disks of the VM were not flattened", "vm", v.name, "layers", v.record.Layers, "error", err)
		}
	}()
}

// stopFlattening ends what startFlattening began and waits for that. Not with the
// mutex: who stops the VM needs it, and ends what is waited for.
func (v *vm) stopFlattening() {
	f := &v.flat
	f.mu.Lock()
	cancel, done := f.cancel, f.done
	f.mu.Unlock()
	if cancel == nil {
		return
	}
	cancel()
	<-done
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done == done {
		f.cancel = nil
	}
}

// endFlattening ends it for good, and does not wait: a QEMU that is told to quit
// ends its jobs by itself.
func (v *vm) endFlattening() {
	f := &v.flat
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	if f.cancel != nil {
		f.cancel()
	}
}

// flattenNow flattens for a save that needs it. What matters is that there is room
// for another disk then.
func (v *vm) flattenNow(caller context.Context) error {
	ctx, cancel := context.WithTimeoutCause(caller, saveLimit,
		fault.New(fault.BackendCommandFailed, "the disks of the VM %s were not flattened within %s", v.name, saveLimit).
			Next("try again when the host's disk is less busy"))
	defer cancel()
	err := v.flatten(ctx, 0)
	if err != nil && v.record.Layers < maxLayers {
		v.b.c.Logger.Warn("the disks of the VM were flattened, with errors", "vm", v.name, "error", err)
		return nil
	}
	return err
}

// flatten shortens the chain to the lowest saved disk, at most speed bytes a
// second; 0: as fast as it goes. When it fails or ctx ends, the chain is as it
// was, or flattened all the same.
func (v *vm) flatten(ctx context.Context, speed int64) error {
	if err := v.settleFlattening(ctx); err != nil {
		return err
	}
	chain, err := statesBelow(v.record.Parent)
	if err != nil {
		return err
	}
	if len(chain) < 2 {
		return nil
	}
	vdir, base := v.b.dir(v.name), chain[len(chain)-1]
	all, err := v.blockNodes(ctx)
	if err != nil {
		return err
	}
	nodes, err := v.nodesBelow(all, len(chain))
	if err != nil {
		return err
	}
	if err := roomToFlatten(vdir, chain[:len(chain)-1]); err != nil {
		return err
	}
	// Before it is true, since afterwards it must not fail.
	if err := userOf(ctx, base, func() error { return addUser(base, vdir, needsDisk) }); err != nil {
		return err
	}
	jobErr := v.blockStream(ctx, nodes[len(nodes)-1], filepath.Join(base, stateDisk), speed)
	if v.jobbed { // the next try settles it
		return jobErr
	}
	// Whatever the job said, and also when ctx has ended: how is it now?
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	now, err := v.blockNodes(ctx)
	if err != nil {
		v.jobbed = true
		return errors.Join(jobErr, err)
	}
	top, below := now[v.node], now[nodes[len(nodes)-1]]
	if top.Depth != below.Depth+1 {
		if jobErr == nil {
			jobErr = errors.New("QEMU did not shorten the chain")
		}
		return jobErr
	}
	return v.flattened(ctx, chain, nodes[:len(nodes)-1])
}

// flattened records that the guest's disk lies on the lowest of the chain, and
// lets go of the others: of nodes in QEMU, and of the states' disks that only
// this VM needs.
func (v *vm) flattened(ctx context.Context, chain, nodes []string) error {
	vdir, base := v.b.dir(v.name), chain[len(chain)-1]
	for _, n := range nodes {
		// Those that QEMU opened by itself are gone already. The others would
		// hold their files open.
		_ = v.control.Do(ctx, "blockdev-del", map[string]any{"node-name": n}, nil)
	}
	r := *v.record
	r.Parent, r.Layers = base, 1
	v.record = &r
	if err := writeJSON(filepath.Join(vdir, vmFile), r, false); err != nil {
		return err // what the old record needs stays
	}
	v.b.c.Logger.Info("the disks of the VM were flattened", "vm", v.name, "layers", len(chain))
	// The chain is short, whatever becomes of the rest: what is kept too long
	// costs room, and goes with the VM.
	for _, dir := range chain[:len(chain)-1] {
		if err := userOf(ctx, dir, func() error { return removeUser(dir, vdir, needsDisk) }); err != nil {
			v.b.c.Logger.Warn("a saved disk is kept for a VM that does not need it any more", "vm", v.name, "state", dir, "error", err)
		}
	}
	if err := v.b.collect(ctx, chain[0]); err != nil {
		v.b.c.Logger.Warn("saved disks that nobody needs were not removed", "vm", v.name, "state", chain[0], "error", err)
	}
	return nil
}

// userOf changes who needs a state, under its lock: a removal that runs at the
// same time sees either of the two.
func userOf(ctx context.Context, dir string, change func() error) error {
	lock, err := lockState(ctx, dir, false)
	if err != nil {
		return err
	}
	defer lock.Close()
	return change()
}

// statesBelow lists the directories of the states whose disks a disk lies on,
// the next one first.
func statesBelow(dir string) (chain []string, err error) {
	for dir != "" {
		if len(chain) > 2*maxLayers {
			return nil, fmt.Errorf("the chain of disks below %s has no end", chain[0])
		}
		r, err := diskRecord(dir)
		if err != nil {
			return nil, err
		}
		chain = append(chain, dir)
		dir = r.Saved.Parent
	}
	return chain, nil
}

// diskRecord is what is known of a state, which may be removed but for its disk.
func diskRecord(dir string) (r stateRecord, err error) {
	err = readJSON(filepath.Join(dir, stateFile), &r)
	if errors.Is(err, fs.ErrNotExist) {
		err = readJSON(filepath.Join(dir, removedFile), &r)
	}
	if err != nil {
		err = unfit(err, dir, "nobody knows what its disk lies on")
	}
	return r, err
}

// roomToFlatten fails if the host's disk has no room for a copy of what the
// states' disks hold.
func roomToFlatten(vdir string, chain []string) error {
	free, err := host.DiskFree(vdir)
	if err != nil {
		return err
	}
	need := int64(flattenRoom)
	for _, dir := range chain {
		need += host.FileAllocated(filepath.Join(dir, stateDisk))
	}
	if free < need {
		return fault.New(fault.InsufficientDisk, "no space on the host to flatten the disks of a VM: %d MiB are free, and it may take %d", free>>20, need>>20).
			Next("free space, or remove snapshots that are not needed")
	}
	return nil
}

// nodeInfo is what QEMU says of a block node.
type nodeInfo struct {
	Name   string `json:"node-name"`
	Driver string `json:"drv"`
	Depth  int    `json:"backing_file_depth"` // how many disks lie below
	Image  struct {
		Backing string `json:"backing-filename"` // as it was called when this one was laid on it
	} `json:"image"`
}

func (v *vm) blockNodes(ctx context.Context) (map[string]nodeInfo, error) {
	var list []nodeInfo
	if err := v.control.Do(ctx, "query-named-block-nodes", nil, &list); err != nil {
		return nil, err
	}
	nodes := make(map[string]nodeInfo, len(list))
	for _, n := range list {
		nodes[n.Name] = n
	}
	return nodes, nil
}

// nodesBelow finds QEMU's nodes of the count disks below the guest's, the next
// one first. A VM has one chain only, so depth alone tells.
func (v *vm) nodesBelow(all map[string]nodeInfo, count int) ([]string, error) {
	top, there := all[v.node]
	if !there {
		return nil, fmt.Errorf("QEMU has no block node %q", v.node)
	}
	nodes := make([]string, count)
	for _, n := range all {
		i := top.Depth - 1 - n.Depth
		if n.Driver != "qcow2" || i < 0 || i >= count {
			continue
		}
		if nodes[i] != "" {
			return nil, fmt.Errorf("QEMU has two disks at depth %d: %s and %s", n.Depth, nodes[i], n.Name)
		}
		nodes[i] = n.Name
	}
	for i, n := range nodes {
		if n == "" {
			return nil, fmt.Errorf("QEMU has %d disks below the guest's, and not the one at %d of %d", top.Depth, i+1, count)
		}
	}
	return nodes, nil
}

// blockStream has QEMU copy what lies between the guest's disk and a base into the
// guest's, and waits for it. When ctx ends, the job is cancelled and waited for
// too, for a while.
func (v *vm) blockStream(ctx context.Context, base, file string, speed int64) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	// Not under ctx: whether the job has begun must be known.
	ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), v.b.limits.jobEnd)
	defer cancel()
	v.jobbed = true
	if err := v.control.Do(ask, "block-stream", map[string]any{
		"job-id": flattenJob, "device": v.node, "base-node": base, "backing-file": file,
		"speed": speed, "auto-dismiss": false, "on-error": "report",
	}, nil); err != nil {
		var refused *qmp.Error
		v.jobbed = !errors.As(err, &refused)
		return err
	}
	j, err := v.endOfJob(ctx, speed)
	switch {
	case err != nil:
		return err
	case j == nil:
		return errors.New("the job is gone")
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case j.Error != "":
		return fmt.Errorf("QEMU could not flatten the disks: %s", j.Error)
	}
	return nil
}

// job is what QEMU says of one.
type job struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Error  string `json:"error"`
}

// flattenJob asks QEMU for the job; nil: there is none.
func (v *vm) flattenJob(ctx context.Context) (*job, error) {
	var jobs []job
	if err := v.control.Do(ctx, "query-jobs", nil, &jobs); err != nil {
		return nil, err
	}
	for _, j := range jobs {
		if j.ID == flattenJob {
			return &j, nil
		}
	}
	return nil, nil
}

// settleFlattening learns what became of a flattening whose end nobody saw. Its
// job may be in QEMU still, and keeps its name; and QEMU 7.2 dies when it is asked
// for its block nodes while a job that has ended is in its list, so this comes
// before whatever asks for them.
func (v *vm) settleFlattening(ctx context.Context) (err error) {
	if !v.jobbed {
		return nil
	}
	defer func() {
		if v.jobbed = err != nil; v.jobbed {
			err = fault.Wrap(err, fault.BackendCommandFailed, "QEMU does not say what became of the flattening of the disks of the VM %s", v.name)
		}
	}()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := v.endOfJob(ended, 0); err != nil {
		return err
	}
	chain, err := statesBelow(v.record.Parent)
	if err != nil || len(chain) < 2 {
		return err
	}
	all, err := v.blockNodes(ctx)
	if err != nil {
		return err
	}
	top, there := all[v.node]
	if !there {
		return fmt.Errorf("QEMU has no block node %q", v.node)
	}
	if top.Image.Backing != filepath.Join(chain[len(chain)-1], stateDisk) {
		return nil
	}
	// Those between, the highest first: each holds the next.
	var between []nodeInfo
	for _, n := range all {
		if n.Driver == "qcow2" && n.Name != v.node && n.Depth >= top.Depth {
			between = append(between, n)
		}
	}
	slices.SortFunc(between, func(a, b nodeInfo) int { return b.Depth - a.Depth })
	var names []string
	for _, n := range between {
		names = append(names, n.Name)
	}
	return v.flattened(ctx, chain, names)
}

// endOfJob waits until the job has ended, takes it from QEMU's list and returns
// it; nil: there is none. When ctx ends, the job is cancelled. QEMU may fail to
// answer for a while, unless it is gone.
func (v *vm) endOfJob(ctx context.Context, speed int64) (*job, error) {
	patience := v.b.limits.jobEnd
	whole := context.WithoutCancel(ctx) // the job has to be seen to its end
	var cancelled, unanswered time.Time // since when; zero: not
	for {
		asked := time.Now()
		ask, cancel := context.WithTimeout(whole, patience)
		j, err := v.flattenJob(ask)
		if err == nil && j != nil && j.Status == "concluded" {
			if err = v.control.Do(ask, "job-dismiss", map[string]any{"id": flattenJob}, nil); err == nil {
				cancel()
				v.jobbed = false
				return j, nil
			}
		}
		cancel()
		switch {
		case err != nil:
			if unanswered.IsZero() {
				unanswered = asked
			}
			if errors.Is(err, qmp.ErrClosed) || time.Since(unanswered) > patience {
				return nil, err
			}
		case j == nil:
			v.jobbed = false
			return nil, nil
		default:
			unanswered = time.Time{}
		}
		wait, poll := ctx, 100*time.Millisecond
		if ctx.Err() != nil {
			wait, poll = whole, 5*time.Millisecond
			switch {
			case err != nil: // ask again first
			case cancelled.IsZero():
				cancelled = time.Now()
				ask, cancel := context.WithTimeout(whole, patience)
				_ = v.control.Do(ask, "job-cancel", map[string]any{"id": flattenJob}, nil) // ended already
				cancel()
			case time.Since(cancelled) > patience:
				return nil, fmt.Errorf("the job that flattens the disks does not end: it is %s", j.Status)
			}
		} else if speed == 0 {
			poll = 5 * time.Millisecond
		}
		_ = pauseBriefly(wait, poll)
	}
}

// removeUser takes back what addUser recorded; see userOf.
func removeUser(dir, user, needs string) error {
	err := os.Remove(userLink(dir, user, needs))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
