package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/host"
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
	if v.record.Layers < flattenLayers {
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

// stopFlattening ends what startFlattening began and waits for that.
func (v *vm) stopFlattening() {
	f := &v.flat
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cancel == nil {
		return
	}
	f.cancel()
	<-f.done
	f.cancel = nil
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

// flatten shortens the chain to the lowest saved disk, at most speed bytes a
// second; 0: as fast as it goes. When it fails or ctx ends, the chain is as it
// was, or flattened all the same.
func (v *vm) flatten(ctx context.Context, speed int64) error {
	chain, err := statesBelow(v.record.Parent)
	if err != nil {
		return err
	}
	if len(chain) < 2 {
		return nil
	}
	vdir, base := v.b.dir(v.name), chain[len(chain)-1]
	nodes, err := v.nodesBelow(ctx, len(chain))
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
	start := time.Now()
	jobErr := v.blockStream(ctx, nodes[len(nodes)-1], filepath.Join(base, stateDisk), speed)
	// Whatever the job said, and also when ctx has ended: how is it now?
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	now, err := v.blockNodes(ctx)
	if err != nil {
		return errors.Join(jobErr, err)
	}
	top, below := now[v.node], now[nodes[len(nodes)-1]]
	if top.Depth != below.Depth+1 {
		if jobErr == nil {
			jobErr = errors.New("QEMU did not shorten the chain")
		}
		return jobErr
	}
	for _, n := range nodes[:len(nodes)-1] {
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
	v.b.c.Logger.Info("the disks of the VM were flattened", "vm", v.name, "layers", len(chain), "took", time.Since(start))
	for _, dir := range chain[:len(chain)-1] {
		if err := userOf(ctx, dir, func() error { return removeUser(dir, vdir, needsDisk) }); err != nil {
			return err
		}
	}
	return v.b.collect(ctx, chain[0])
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
func (v *vm) nodesBelow(ctx context.Context, count int) ([]string, error) {
	all, err := v.blockNodes(ctx)
	if err != nil {
		return nil, err
	}
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
// too.
func (v *vm) blockStream(ctx context.Context, base, file string, speed int64) error {
	if err := v.control.Do(ctx, "block-stream", map[string]any{
		"job-id": flattenJob, "device": v.node, "base-node": base, "backing-file": file,
		"speed": speed, "auto-dismiss": false, "on-error": "report",
	}, nil); err != nil {
		return err
	}
	wait := ctx
	cancelled := false
	for {
		var jobs []struct {
			ID     string `json:"id"`
			Status string `json:"status"`
			Error  string `json:"error"`
		}
		// Not under ctx: the job has to be seen to its end.
		ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		err := v.control.Do(ask, "query-jobs", nil, &jobs)
		if err == nil && ctx.Err() != nil && !cancelled {
			cancelled = true
			wait = context.WithoutCancel(ctx)
			_ = v.control.Do(ask, "job-cancel", map[string]any{"id": flattenJob}, nil) // ended already
		}
		cancel()
		if err != nil {
			return err
		}
		found := false
		for _, j := range jobs {
			if j.ID != flattenJob {
				continue
			}
			found = true
			if j.Status != "concluded" {
				continue
			}
			_ = v.control.Do(wait, "job-dismiss", map[string]any{"id": flattenJob}, nil)
			if j.Error != "" {
				return fmt.Errorf("QEMU could not flatten the disks: %s", j.Error)
			}
			return context.Cause(ctx)
		}
		if !found {
			return errors.New("the job is gone")
		}
		poll := 100 * time.Millisecond
		if cancelled || speed == 0 {
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
