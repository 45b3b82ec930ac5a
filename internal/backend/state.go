package backend

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Saver is implemented by Machines whose whole state can be saved while they
// run. Their backend is a StateKeeper.
type Saver interface {
	// Save writes the VM's memory, devices and disk as they are at one moment
	// into dir, an absolute path that must not exist, and which is complete
	// when Save returns without error and gone when it fails. The guest stands
	// still meanwhile for SavedState.Pause, and goes on. The agent's stream
	// must be closed: a saved guest has no host that listens. ctx cancelled
	// before the guest stood still changes nothing; afterwards the guest goes
	// on all the same. ErrUnsupported if this VM cannot be saved, with the
	// reason. ErrNotRunning if it ended.
	Save(ctx context.Context, dir string, o SaveOptions) (SavedState, error)
}

// SaveOptions are of one save.
type SaveOptions struct {
	// End ends the VM with the save. With Spec.MemoryFile its memory is moved
	// into the state instead of copied.
	End bool
	// Progress is told about the save; may be nil.
	Progress Progress
}

// StateKeeper is implemented by Backends that keep saved states.
type StateKeeper interface {
	// StateKey is a digest of everything that a saved state of a VM of this
	// Spec depends on, here and now, its name, its host name and the size of
	// its disk excepted: a state made under another key must not be used.
	StateKey(ctx context.Context, s Spec) (string, error)

	// CheckState looks at a saved state before it is used. It fails with
	// ErrStateUnfit for one that is damaged, incomplete, made under another
	// StateKey than VMs of its own Spec have now, or saved before the host's
	// last boot and not settled. Everything is read once per boot of the host,
	// and identity, size and time of each file every time. A file that is
	// damaged while a VM uses it is not noticed.
	CheckState(ctx context.Context, dir string) (SavedState, error)

	// SettleState has a state that is to outlive this boot of the host written
	// to the disk, with the disks below it, and a digest of it kept. It takes as
	// long as reading it. A state saved with SaveOptions.End is settled already.
	// It fails with ErrStateUnfit as CheckState does, and when ctx ends; the
	// state is then as it was.
	SettleState(ctx context.Context, dir string) error

	// RemoveState removes a saved state. A missing one is success; one that
	// VMs or other states need fails with an *InUseError and is unchanged. Of
	// a state that is needed only as part of a disk, memory and devices are
	// removed, and the rest when the last user is gone: success.
	RemoveState(ctx context.Context, dir string) error
}

// SavedState describes a saved state.
type SavedState struct {
	Dir         string        `json:"dir"`
	Key         string        `json:"key"`  // StateKey of its VM when it was made
	Spec        Spec          `json:"spec"` // of the VM it was made of
	Accelerator string        `json:"accelerator"`
	CreatedAt   time.Time     `json:"created_at"`
	Pause       time.Duration `json:"pause_ns"`         // how long the guest stood still
	MemoryBytes int64         `json:"memory_bytes"`     // on the host's disk
	DiskBytes   int64         `json:"disk_bytes"`       // on the host's disk, this state's alone
	DiskSize    int64         `json:"disk_size"`        // as the guest sees it
	Parent      string        `json:"parent,omitempty"` // directory of the state whose disk it needs
}

// InUseError says who needs a saved state. It is ErrStateInUse.
type InUseError struct {
	Dir   string
	Users []string // directories of VMs and saved states
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("the saved state %s is in use by %s", e.Dir, strings.Join(e.Users, ", "))
}

// Is makes it an ErrStateInUse.
func (e *InUseError) Is(target error) bool { return target == ErrStateInUse }
