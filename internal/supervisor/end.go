package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"sandboxforge/internal/fault"
)

// Reasons of an End that this package gives. Others come from the backend's
// Exit ("guest powered off", "hypervisor died", ...).
const (
	ReasonDestroyed  = "destroyed"
	ReasonExpired    = "expired"
	ReasonSignal     = "signal"
	ReasonBootFailed = "boot failed"
)

// Bounds of end.json: what the collector writes stays well below what the
// reader accepts.
const (
	tailBytes     = 64 << 10 // of each stream of each task
	maxTailsBytes = 16 << 20 // of all streams together
	maxEndTasks   = 1000
	maxEndBytes   = 64 << 20
)

// End is the record of a VM's end.
type End struct {
	InstanceID string `json:"instance_id"`
	Name       string `json:"name"`
	Reason     string `json:"reason"`
	Detail     string `json:"detail,omitempty"`
	// Code says what the host had too little of, for a boot that failed for it.
	Code fault.Code `json:"code,omitempty"`
	At   time.Time  `json:"at"`
	// Console is the end of the guest's console, for ends that nobody asked for.
	Console string `json:"console,omitempty"`
	// TasksMissing says why Tasks may be incomplete; empty if it is not.
	TasksMissing string    `json:"tasks_missing,omitempty"`
	Tasks        []TaskEnd `json:"tasks"`
}

// TaskEnd is what was known of a process of the guest when the VM ended.
type TaskEnd struct {
	ID string `json:"id"`
	// Status is "running" (it was killed with the VM), "exited", "signaled" or
	// "lost".
	Status      string    `json:"status"`
	ExitCode    int32     `json:"exit_code"`
	Signal      int32     `json:"signal,omitempty"`
	TimedOut    bool      `json:"timed_out,omitempty"`
	Error       string    `json:"error,omitempty"`
	StartedAt   time.Time `json:"started_at,omitzero"`
	FinishedAt  time.Time `json:"finished_at,omitzero"`
	StdoutTail  []byte    `json:"stdout_tail,omitempty"` // at most the last 64 KiB
	StderrTail  []byte    `json:"stderr_tail,omitempty"`
	StdoutTotal uint64    `json:"stdout_total"` // bytes that the process wrote
	StderrTotal uint64    `json:"stderr_total"`
	// TailError says why a tail is missing.
	TailError string `json:"tail_error,omitempty"`
}

// ReadEnd reads the record of a VM's end from its instance directory. The
// error is ErrNoEnd if there is none, ErrCorrupt if the record cannot be
// understood (the VM has ended all the same), or an I/O error, which says
// nothing.
func ReadEnd(dir string) (*End, error) {
	b, err := readBounded(filepath.Join(dir, endFile), maxEndBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s", ErrNoEnd, dir)
	}
	if err != nil {
		return nil, err
	}
	return parseEnd(b)
}

func parseEnd(b []byte) (*End, error) {
	var e End
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&e); err != nil {
		return nil, fmt.Errorf("%w: end record: %w", ErrCorrupt, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("%w: end record: something follows it", ErrCorrupt)
	}
	if e.Reason == "" || e.At.IsZero() {
		return nil, fmt.Errorf("%w: end record without reason or time", ErrCorrupt)
	}
	if len(e.Tasks) > maxEndTasks {
		return nil, fmt.Errorf("%w: end record with %d tasks", ErrCorrupt, len(e.Tasks))
	}
	for i := range e.Tasks {
		if e.Tasks[i].ID == "" {
			return nil, fmt.Errorf("%w: end record: task without id", ErrCorrupt)
		}
	}
	return &e, nil
}

// reserveFile holds the room for a record without output: a full disk must not
// keep an end from being recorded.
const (
	reserveFile  = "end.reserve"
	reserveBytes = 16 << 10
)

func reserveEnd(dir string) error {
	return writeAtomic(filepath.Join(dir, reserveFile), bytes.Repeat([]byte("room for the end\n"), reserveBytes/17))
}

// writeEnd records the end, without what the tasks printed if there is no room
// for that.
func writeEnd(dir string, e *End) error {
	err := writeRecord(dir, e)
	reserve := os.Remove(filepath.Join(dir, reserveFile))
	if err == nil || reserve != nil {
		return err
	}
	short := *e
	short.Tasks, short.Console = nil, ""
	short.Detail = printable([]byte(e.Detail), 2<<10)
	short.TasksMissing = printable([]byte("what the tasks printed could not be kept: "+err.Error()), 1<<10)
	return writeRecord(dir, &short)
}

func writeRecord(dir string, e *End) error {
	if e.Tasks == nil {
		e.Tasks = []TaskEnd{}
	}
	b, err := json.MarshalIndent(e, "", " ")
	if err != nil {
		return err
	}
	return writeAtomic(filepath.Join(dir, endFile), append(b, '\n'))
}
