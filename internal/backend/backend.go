// Package backend is the contract between SandboxForge and a hypervisor: the
// life cycle of one VM and a byte stream to the agent inside it. Everything
// else (commands, files, sync, tasks, Docker) is written once, against the
// guest client, and never asks which backend it runs on.
//
// A backend knows nothing of leases, MCP or Docker. It knows VMs by name, and
// all that it keeps about a VM lies in that VM's directory or with the
// hypervisor, so that any process of the same user can find it.
//
// # The story of a VM
//
// A server process asks Probe whether the backend can be used at all, and
// calls Create: afterwards the VM has a disk and nothing runs. It then starts
// a supervisor process, which calls Start on its own Backend value made from
// the same Config. Start returns a Machine, and the supervisor owns it: it
// dials the agent, waits for the end, stops it. Any process may call Inspect,
// List and Delete at any time, also while the supervisor lives, is being
// killed, or is long gone.
//
//	err := b.Create(ctx, backend.Spec{Name: "agent-0a1b2c3d", ...})
//	m, err := b.Start(ctx, "agent-0a1b2c3d")      // in the supervisor
//	stream, err := m.DialAgent(ctx)
//	err = m.Stop(ctx, 5*time.Second)
//	err = b.Delete(ctx, "agent-0a1b2c3d")
//
// # Saved states
//
// Where Capabilities.Clones is set, a Machine is a Saver and the Backend a
// StateKeeper. A saved state is a directory: a VM's memory, devices and disk at
// one moment. It never changes, and VMs whose Spec.From names it begin there
// instead of booting, any number of them. A template is such a state of a VM
// that was made to be one, a snapshot one of a VM that goes on.
//
//	saved, err := m.(backend.Saver).Save(ctx, dir, backend.SaveOptions{})
//	err = b.Create(ctx, backend.Spec{Name: "agent-4e5f6a7b", From: dir, ...})
//
// A VM that began in a state, and one that was saved and went on, need the
// state's files for as long as they exist; the backend keeps account of that.
//
// # Errors
//
// Methods return *fault.Error values for what a person can act on. Callers
// test kinds with errors.Is against ErrNotFound, ErrRunning, ErrNotRunning and
// ErrUnsupported; an error that is none of these says nothing about the VM's
// state, and the caller looks with Inspect. A name that cannot be one is
// INVALID_ARGUMENT everywhere (CheckName), Delete included.
//
// # Tests
//
// backendtest.Suite holds every backend to the sentences below.
package backend

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"regexp"
	"time"

	"sandboxforge/internal/fault"
)

// Error kinds. They are wrapped by the errors that methods return.
var (
	// ErrNotFound: there is no VM of that name.
	ErrNotFound = errors.New("no such VM")
	// ErrRunning: the VM runs and the call needs one that does not.
	ErrRunning = errors.New("the VM is running")
	// ErrNotRunning: the VM does not run and the call needs one that does.
	ErrNotRunning = errors.New("the VM is not running")
	// ErrUnsupported: this backend cannot do that. Never returned for what
	// Capabilities claims.
	ErrUnsupported = errors.New("not supported by this backend")
	// ErrExists: a VM of that name exists with another Spec.
	ErrExists = errors.New("a VM of that name exists with another specification")
	// ErrStateUnfit: a saved state cannot be used here: it is damaged, foreign
	// or of another hypervisor. A boot can.
	ErrStateUnfit = errors.New("the saved state cannot be used")
	// ErrStateInUse: a saved state has users. The error is an *InUseError.
	ErrStateInUse = errors.New("the saved state is in use")
	// ErrBootFailed: BootWatcher saw that this boot will not succeed. Another
	// may.
	ErrBootFailed = errors.New("the guest's boot failed")
)

// Backend is one hypervisor. Its methods may be called concurrently and from
// several processes at once.
type Backend interface {
	// Name is the backend's name in results and configuration: "qemu",
	// "lima", "hyperv", "fake".
	Name() string

	// Probe says whether VMs can be made here. It must not fail for what is
	// merely missing: that is a Report with Usable false and a Problem for
	// each missing item with the command that mends it. It may block for the
	// time of an accelerator trial the first time, and is fast afterwards.
	Probe(ctx context.Context, p Progress) (Report, error)

	// Capabilities says what this backend can do. It does not block.
	Capabilities() Capabilities

	// Create makes the VM's disk and records its Spec; nothing runs
	// afterwards. It is idempotent: the same Spec again succeeds and changes
	// nothing. Another Spec under the same name fails with ErrExists. When it
	// fails or is cancelled, nothing of the VM is left.
	Create(ctx context.Context, s Spec) error

	// Start runs a created VM and returns at once when the hypervisor runs
	// it, not when the guest is up. It fails with ErrNotFound, or ErrRunning
	// if any process runs that VM already; two concurrent Starts never run
	// one disk twice. Where Capabilities.DiesWithOwner is set, the VM ends
	// when the calling process ends, however that ends. ctx bounds the start
	// only; the Machine outlives it.
	Start(ctx context.Context, name string, o StartOptions) (Machine, error)

	// Inspect returns the VM as it is now; ErrNotFound if there is none. A VM
	// whose hypervisor process was killed is Stopped at once.
	Inspect(ctx context.Context, name string) (Info, error)

	// List returns every VM of this backend under its state directory,
	// half-made and broken ones included, and never one that is not there.
	List(ctx context.Context) ([]Info, error)

	// Delete stops the VM by force if it runs, from whatever process, and
	// removes all that belongs to it. A missing VM is success. After success
	// List does not show it, no process of it is left, and the name can be
	// used again. It is safe to call it concurrently with anything.
	Delete(ctx context.Context, name string) error
}

// Preparer is implemented by Backends whose VMs come up sooner when something
// was made ready for all VMs of a kind before: a disk that others are copies of.
type Preparer interface {
	// Prepare makes ready what Create of such a Spec then begins with; its Name
	// and Hostname do not matter. It returns at once where that is there, waits
	// for another process that makes it, and may boot a VM. It is never needed:
	// after a failure Create does without. Cancelled, it leaves nothing.
	Prepare(ctx context.Context, s Spec, p Progress) error
}

// Machine is a running VM, owned by the process that started it.
type Machine interface {
	// DialAgent opens the byte stream to the guest's agent port. There is one
	// at a time: a new one takes the place of the old. It blocks until the
	// hypervisor's end is there or ctx ends; that the guest's agent answers
	// is for the caller to find out. Bytes of an earlier stream may still be
	// in the queues: the link layer above copes.
	DialAgent(ctx context.Context) (io.ReadWriteCloser, error)

	// Done is closed when the VM has ended, for whatever reason.
	Done() <-chan struct{}

	// Exit says how it ended; valid after Done.
	Exit() Exit

	// Stop ends the VM: politely if grace is positive, by force when grace or
	// ctx has passed. After success the VM is gone. Stopping an ended VM
	// succeeds.
	Stop(ctx context.Context, grace time.Duration) error

	// Info is what Inspect would return.
	Info() Info

	// Console returns the newest bytes of the guest's console, at most max.
	Console(max int) []byte
}

// BootWatcher is implemented by Machines that can tell a boot that will not
// succeed from one that is slow. Emulated boots panic or hang now and then; the
// owner watches while it waits for the agent, and boots again on ErrBootFailed,
// the last time with StartOptions.Cautious.
type BootWatcher interface {
	// WatchBoot blocks until the boot is seen to fail, and returns an error
	// that wraps ErrBootFailed and says what was seen; the VM may still run
	// then, and the caller stops it. A VM that ended is such a failure too. It
	// returns nil when ctx ends: the owner cancels ctx when the agent answers.
	WatchBoot(ctx context.Context) error
}

// Wired is implemented by Machines whose network card is wired to their owner:
// without one who serves it the guest has no network.
type Wired interface {
	// DialNetwork returns the stream of the card's Ethernet frames, each behind
	// its length as four bytes, big-endian. There is one stream for the life
	// of the VM: a second call fails, and its end is the VM's.
	DialNetwork(ctx context.Context) (net.Conn, error)
}

// Spec is what a VM is made of. Equal Specs make equal VMs.
type Spec struct {
	Name      string `json:"name"` // [a-z0-9][a-z0-9-]{0,39}
	CPUs      int    `json:"cpus"`
	MemoryMiB int64  `json:"memory_mib"`
	DiskBytes int64  `json:"disk_bytes"`         // size of the root disk; never below the image's
	Arch      string `json:"arch"`               // GOARCH; empty: the host's
	Image     string `json:"image,omitempty"`    // qemu: name of a built image, empty for the default
	Template  string `json:"template,omitempty"` // lima
	VMType    string `json:"vm_type,omitempty"`  // lima
	Hostname  string `json:"hostname,omitempty"`
	// From is the directory of a saved state in which the VM begins, instead
	// of a boot, each time it is started: nothing stays of an earlier life.
	// CPUs, MemoryMiB, Arch and Image must be the state's; the disk may be
	// larger, and is never smaller. Needs Capabilities.Clones.
	From string `json:"from,omitempty"`
	// MemoryFile keeps the guest's memory in a file of its own, so that
	// Saver.Save with End copies nothing. For VMs that become templates.
	MemoryFile bool `json:"memory_file,omitempty"`
}

var (
	namePattern     = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)
	hostnamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// CheckName fails with INVALID_ARGUMENT for what can't be a VM's name. Names
// become file names and arguments of hypervisors, so every method that takes
// one checks it; for a query a malformed name is also ErrNotFound.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return fault.Wrap(ErrNotFound, fault.InvalidArgument, "%.60q is not a VM name", name).
			Because("a name is 1 to 40 of a-z, 0-9 and -, and does not begin with -")
	}
	return nil
}

// Check fails with INVALID_ARGUMENT for a Spec that no backend can honour.
func (s Spec) Check() error {
	if err := CheckName(s.Name); err != nil {
		return err
	}
	switch {
	case s.CPUs < 1 || s.CPUs > 255:
		return fault.New(fault.InvalidArgument, "%d CPUs: a VM has 1 to 255", s.CPUs)
	case s.MemoryMiB < 64 || s.MemoryMiB > 4<<20:
		return fault.New(fault.InvalidArgument, "%d MiB of memory: a VM has 64 MiB to 4 TiB", s.MemoryMiB)
	case s.DiskBytes < 0 || s.DiskBytes > 64<<40:
		return fault.New(fault.InvalidArgument, "a disk of %d bytes: at most 64 TiB", s.DiskBytes)
	case s.Arch != "" && s.Arch != "amd64" && s.Arch != "arm64":
		return fault.New(fault.InvalidArgument, "architecture %.40q: amd64 or arm64", s.Arch)
	case s.From != "" && (!filepath.IsAbs(s.From) || s.MemoryFile):
		return fault.New(fault.InvalidArgument, "a VM begins in a saved state by its absolute path, and then has no memory file")
	case s.Hostname != "" && !hostnamePattern.MatchString(s.Hostname):
		return fault.New(fault.InvalidArgument, "%.80q is not a host name", s.Hostname).
			Because("a host name is up to 63 of a-z, 0-9 and -, without - at the ends")
	}
	return nil
}

// StartOptions are of one start, not of the VM.
type StartOptions struct {
	// Accel forces an accelerator; empty: what Probe found.
	Accel string
	// Cautious runs the guest the slowest and safest way the backend knows
	// (qemu: emulation on one thread). It is for the last attempt after boots
	// that BootWatcher reported as failed; others ignore it.
	Cautious bool
	// Progress is told about the start; may be nil.
	Progress Progress
}

// State is what the hypervisor says of a VM.
type State string

// The states.
const (
	Stopped State = "stopped" // has a disk, nothing runs
	Running State = "running"
	Broken  State = "broken" // half-made or damaged; only Delete helps
)

// Info describes a VM.
type Info struct {
	Name        string    `json:"name"`
	State       State     `json:"state"`
	Detail      string    `json:"detail,omitempty"` // why it is broken
	PID         int       `json:"pid,omitempty"`    // of the hypervisor process, if there is one
	Accelerator string    `json:"accelerator,omitempty"`
	Dir         string    `json:"dir,omitempty"` // the VM's directory on the host
	DiskUsed    int64     `json:"disk_used"`     // bytes on the host that are this VM's alone
	StartedAt   time.Time `json:"started_at,omitzero"`
	SSHPort     int       `json:"ssh_port,omitempty"`
}

// Exit says how a VM ended.
type Exit struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"` // one of the Exit constants
	Detail string    `json:"detail,omitempty"`
	// Starved: it is the host that most likely had too little memory for it. It
	// was killed from outside, as the kernel does then, or said so itself.
	Starved bool `json:"starved,omitempty"`
}

// How a VM can end.
const (
	ExitStopped        = "stopped"           // Stop or Delete of some process asked for it
	ExitGuestOff       = "guest powered off" // the guest did it on its own
	ExitGuestReset     = "guest reset"       // the guest rebooted; VMs do not come back from that
	ExitGuestPanic     = "guest panic"
	ExitHypervisorDied = "hypervisor died" // killed or crashed
)

// Capabilities is what a backend can do, so that callers read it instead of
// switching on the backend's name. Clients see it in create_instance.
type Capabilities struct {
	Snapshots             bool `json:"snapshots"`               // memory included
	Clones                bool `json:"clones"`                  // from a template, without a boot
	EgressPolicy          bool `json:"egress_policy"`           // what the guest may reach can be limited
	HostLoopbackReachable bool `json:"host_loopback_reachable"` // the guest can reach services on the host's loopback
	DiskGrowth            bool `json:"disk_growth"`
	DiesWithOwner         bool `json:"dies_with_owner"` // the VM ends with its supervisor
	MemoryReturn          bool `json:"memory_return"`
}

// Report is the outcome of Probe.
type Report struct {
	Usable      bool      `json:"usable"`
	Version     string    `json:"version,omitempty"` // of the hypervisor
	Accelerator string    `json:"accelerator,omitempty"`
	Evidence    []string  `json:"evidence,omitempty"` // why this accelerator, one sentence each
	Problems    []Problem `json:"problems,omitempty"`
}

// Problem is something that is missing, with its remedy.
type Problem struct {
	What string `json:"what"`
	Fix  string `json:"fix"` // a command or an instruction
	// Fatal problems make the backend unusable.
	Fatal bool `json:"fatal"`
	// Doubtful: VMs will most likely not start. The backend is used all the
	// same, because the operator said so.
	Doubtful bool `json:"doubtful,omitempty"`
}

// Progress is told what a long operation does. Implementations must not
// block. A nil Progress is allowed everywhere one is taken; call Report.
type Progress func(stage, message string)

// Report calls p if it is not nil.
func (p Progress) Report(stage, message string) {
	if p != nil {
		p(stage, message)
	}
}
