package supervisor

import (
	"bytes"
	"strings"
	"sync"
	"time"
	"unicode"

	"sandboxforge/internal/backend"
)

// State is where a VM is in its life.
type State string

// The states, in the order in which they come. A VM can go to StateStopping
// from any of them and never goes back.
const (
	StateBooting  State = "booting"
	StateReady    State = "ready"
	StateStopping State = "stopping"
	StateEnded    State = "ended"
)

// Status is a VM as its supervisor sees it.
type Status struct {
	State            State            `json:"state"`
	AgentConnected   bool             `json:"agent_connected"`
	AgentVersion     string           `json:"agent_version,omitempty"`
	AgentConnections uint64           `json:"agent_connections"` // how often the link was established
	BootID           string           `json:"boot_id,omitempty"`
	Accelerator      string           `json:"accelerator,omitempty"`
	PID              int              `json:"pid"`              // of the supervisor
	VMPID            int              `json:"vm_pid,omitempty"` // of the hypervisor, if it is a process
	StartedAt        time.Time        `json:"started_at"`       // of the supervisor
	ReadyAt          time.Time        `json:"ready_at,omitzero"`
	Deadline         time.Time        `json:"deadline"`
	Remaining        time.Duration    `json:"remaining_ns"` // to the deadline, suspend counted
	BootAttempts     int              `json:"boot_attempts"`
	BootAttemptsMax  int              `json:"boot_attempts_max"`
	Timings          map[string]int64 `json:"timings_ms"` // of the boot's steps: start, agent, prepare, total
	Stage            string           `json:"stage"`      // starting, booting, retrying, preparing, ready, stopping, ended
	Message          string           `json:"message"`    // what it does, one sentence
	LastConsole      string           `json:"last_console,omitempty"`
	EndReason        string           `json:"end_reason,omitempty"` // once stopping
	EndDetail        string           `json:"end_detail,omitempty"`
}

// board is the current Status, for many readers.
type board struct {
	mu      sync.Mutex
	st      Status
	changed chan struct{} // closed and replaced by each change
}

func newBoard(st Status) *board {
	return &board{st: st, changed: make(chan struct{})}
}

// update changes the status under the lock. f must not block.
func (b *board) update(f func(*Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.st)
	close(b.changed)
	b.changed = make(chan struct{})
}

// get returns the status and a channel that closes with the next change.
func (b *board) get() (Status, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	st := b.st
	st.Timings = make(map[string]int64, len(b.st.Timings))
	for k, v := range b.st.Timings {
		st.Timings[k] = v
	}
	return st, b.changed
}

func (b *board) stage(stage, message string) {
	b.update(func(st *Status) { st.Stage, st.Message = stage, message })
}

func (b *board) timing(name string, d time.Duration) {
	b.update(func(st *Status) {
		if st.Timings == nil {
			st.Timings = map[string]int64{}
		}
		st.Timings[name] = d.Milliseconds()
	})
}

// machineInfo copies what the hypervisor says.
func (b *board) machineInfo(i backend.Info) {
	b.update(func(st *Status) { st.VMPID, st.Accelerator = i.PID, i.Accelerator })
}

// lastLine is the newest line of a console that has something on it, without
// what a terminal would act on, at most 200 bytes.
func lastLine(console []byte) string {
	for len(console) > 0 {
		line := console
		if i := bytes.LastIndexByte(console, '\n'); i >= 0 {
			line, console = console[i+1:], console[:i]
		} else {
			console = nil
		}
		if s := printable(line, 200); s != "" {
			return s
		}
	}
	return ""
}

// printable drops escape sequences and control characters, and what is beyond
// limit bytes.
func printable(b []byte, limit int) string {
	var out strings.Builder
	for i := 0; i < len(b); i++ {
		if b[i] == 0x1b && i+1 < len(b) && b[i+1] == '[' {
			for i += 2; i < len(b) && (b[i] < 0x40 || b[i] > 0x7e); i++ {
			}
			continue
		}
		if b[i] == 0x1b && i+1 < len(b) && b[i+1] == ']' { // ended by BEL or ESC \
			for i += 2; i < len(b) && b[i] != 0x07 && b[i] != 0x1b; i++ {
			}
			if i+1 < len(b) && b[i] == 0x1b && b[i+1] == '\\' {
				i++
			}
			continue
		}
		out.WriteByte(b[i])
	}
	s := strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(out.String(), ""))
	s = strings.TrimSpace(s)
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "")
	}
	return s
}

// printableText is printable for several lines, the newest limit bytes.
func printableText(b []byte, limit int) string {
	var lines []string
	for line := range bytes.SplitSeq(b, []byte("\n")) {
		if s := printable(line, 400); s != "" {
			lines = append(lines, s)
		}
	}
	s := strings.Join(lines, "\n")
	if len(s) > limit {
		s = strings.ToValidUTF8(s[len(s)-limit:], "")
	}
	return s
}
