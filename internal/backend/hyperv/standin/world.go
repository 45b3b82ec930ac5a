package standin

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// World is the host: its Hyper-V, and what is wrong with it. It is kept in a
// directory; Load and Update are how a test and the stand-ins share it.
type World struct {
	VMs       []*VM      `json:"vms"`
	Switches  []Switch   `json:"switches"`
	Neighbors []Neighbor `json:"neighbors,omitempty"` // that no VM is behind
	Events    []Event    `json:"events,omitempty"`
	MemoryMiB int64      `json:"memory_mib"` // for VMs
	Next      int        `json:"next"`       // of addresses
	Edition   string     `json:"edition"`    // of Windows
	SKU       int64      `json:"sku"`        // its number
	Faults    Faults     `json:"faults"`
	Real      *Real      `json:"real,omitempty"` // what VMs really are; nil: nothing
}

// VM is a virtual machine. Names may repeat.
type VM struct {
	ID                   guid          `json:"id"`
	Name                 string        `json:"name"`
	Path                 string        `json:"path"`
	State                string        `json:"state"`
	Then                 string        `json:"then,omitempty"` // the state that follows State at Until
	Until                time.Time     `json:"until,omitzero"`
	Notes                string        `json:"notes"`
	Generation           int64         `json:"generation"`
	Processors           int64         `json:"processors"`
	Memory               int64         `json:"memory"`
	DynamicMemory        bool          `json:"dynamic_memory"`
	AutomaticCheckpoints bool          `json:"automatic_checkpoints"`
	CheckpointType       string        `json:"checkpoint_type"`
	StartAction          string        `json:"start_action"`
	StopAction           string        `json:"stop_action"`
	SecureBoot           string        `json:"secure_boot"`
	SecureBootTemplate   string        `json:"secure_boot_template"`
	FirstBoot            string        `json:"first_boot"` // path
	Disks                []Drive       `json:"disks"`
	DVDs                 []Drive       `json:"dvds"`
	MAC                  string        `json:"mac"`
	StaticMAC            bool          `json:"static_mac"`
	Switch               string        `json:"switch"`
	Address              string        `json:"address"`
	StartedAt            time.Time     `json:"started_at,omitzero"`
	Snapshots            []*Checkpoint `json:"snapshots,omitempty"`
	Clustered            bool          `json:"clustered"`
	PID                  int           `json:"pid,omitempty"`  // of QEMU, if it is real
	Port                 int           `json:"port,omitempty"` // of the host, to its sshd
}

// Drive is a disk or DVD drive of a VM.
type Drive struct {
	Path       string `json:"path"`
	Controller string `json:"controller"`
	Number     int64  `json:"number"`
	Location   int64  `json:"location"`
}

// Checkpoint is one of a VM.
type Checkpoint struct {
	ID    guid    `json:"id"`
	Name  string  `json:"name"`
	Saved bool    `json:"saved"` // with memory
	Disks []Drive `json:"disks"`
}

// Switch is a virtual switch.
type Switch struct {
	ID   guid   `json:"id"`
	Name string `json:"name"`
	Type string `json:"type"` // Private, Internal, External
}

// Neighbor is a row of the host's neighbour table.
type Neighbor struct{ Address, MAC, State string }

// Event is an entry of the event log of Hyper-V's worker or of vmms.
type Event struct {
	At      time.Time
	Log     string
	ID      int64
	Level   int64
	Message string
}

// Faults are what a test orders. The zero value is a host where all is well.
type Faults struct {
	// Rights: "" both, "administrator", "hyper-v", "none": no error, and nothing
	// is seen, "none-error": an error.
	Rights        string
	VmmsStopped   bool
	VmmsMissing   bool
	ModuleMissing bool
	NoHypervisor  bool
	LanguageMode  string // "": FullLanguage
	Localized     bool   // messages are not English
	Noise         bool   // warnings on stdout
	NoKVP         bool   // guests have no integration service
	NoNeighbors   bool
	NoShutdown    bool          // guests do not shut down when asked
	AddressDelay  time.Duration // from the start of a VM to its address
	Latency       time.Duration // of each cmdlet that asks the host
	StartTime     time.Duration // that a VM is Starting
	StopTime      time.Duration // that a VM is Stopping
	Hang          []string      // cmdlets that hang, once for each mention
	Die           []string      // cmdlets behind which the process dies
	Errors        map[string]OrderedError
}

// OrderedError is what a cmdlet fails with.
type OrderedError struct {
	ID, Category string
	HResult      uint32
	Once         bool
}

// DefaultSwitch has the id that it has on every client Windows.
var DefaultSwitch = Switch{ID: "c08cb7b8-9b3c-408e-8e30-5e16a3aeb444", Name: "Default Switch", Type: "Internal"}

const worldFile = "world.json"

// New makes a world in dir: Windows 11 Pro with Hyper-V and no VM.
func New(dir string) error {
	w := &World{Switches: []Switch{DefaultSwitch}, MemoryMiB: 64 << 10, Edition: "Microsoft Windows 11 Pro", SKU: 48}
	return w.save(dir)
}

// Load reads the world as it is now.
func Load(dir string) (*World, error) {
	b, err := os.ReadFile(filepath.Join(dir, worldFile))
	if err != nil {
		return nil, err
	}
	w := &World{}
	if err := json.Unmarshal(b, w); err != nil {
		return nil, err
	}
	w.settle(time.Now())
	return w, nil
}

// Update changes the world. Nobody else sees or changes it meanwhile.
func Update(dir string, change func(*World)) error {
	l := flock.New(filepath.Join(dir, "lock"))
	if err := l.Lock(); err != nil {
		return err
	}
	defer l.Close()
	w, err := Load(dir)
	if err != nil {
		return err
	}
	change(w)
	return w.save(dir)
}

func (w *World) save(dir string) error {
	b, err := json.MarshalIndent(w, "", " ")
	if err != nil {
		return err
	}
	// A name of its own: a killed stand-in may leave one.
	f, err := os.CreateTemp(dir, ".world-*")
	if err != nil {
		return err
	}
	_, werr := f.Write(b)
	if err := errors.Join(werr, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, worldFile))
}

// settle lets the time that passed have its effect.
func (w *World) settle(now time.Time) {
	for _, v := range w.VMs {
		if v.PID != 0 && !v.alive() {
			v.State, v.Then, v.PID = "Off", "", 0
		}
		if v.Then != "" && !now.Before(v.Until) {
			v.State, v.Then = v.Then, ""
		}
	}
}

// Find is a VM by its id.
func (w *World) Find(id string) *VM {
	for _, v := range w.VMs {
		if string(v.ID) == id {
			return v
		}
	}
	return nil
}

// Kill is the end of a VM's worker process, as if it had crashed.
func Kill(dir, id string) error {
	found := false
	err := Update(dir, func(w *World) {
		if v := w.Find(id); v != nil && v.runs() {
			found = true
			if w.Real != nil && v.PID != 0 {
				w.Real.cut(v)
			}
			v.State, v.Then = "Off", ""
			w.Events = append(w.Events, Event{time.Now(), "Microsoft-Windows-Hyper-V-Worker-Admin", 3430, 2, "'" + v.Name + "' terminated unexpectedly. (Virtual machine ID " + string(v.ID) + ")"})
		}
	})
	if err == nil && !found {
		err = fmt.Errorf("no running VM %s: %w", id, fs.ErrNotExist)
	}
	return err
}

// PowerOff is a guest that shuts itself down.
func PowerOff(dir, id string) error {
	return Update(dir, func(w *World) {
		if v := w.Find(id); v != nil {
			v.State, v.Then = "Off", ""
			w.Events = append(w.Events, Event{time.Now(), "Microsoft-Windows-Hyper-V-Worker-Admin", 18508, 4, "'" + v.Name + "' was shut down. (Virtual machine ID " + string(v.ID) + ")"})
		}
	})
}

func (v *VM) runs() bool { return v.State != "Off" && v.State != "Saved" && v.State != "OffCritical" }

func newGUID() guid {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return guid(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
}
