package shim

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Messages between agent and shim: type, length (4 bytes, little endian), body.
const (
	MsgJob        = 'J' // agent: length of JSON (4 bytes), Job as JSON, stdin bytes. First message on fd 3.
	MsgStarted    = 'R' // shim: Started as JSON
	MsgWake       = 'W' // shim: there is output, and State.Waiting was set
	MsgExited     = 'X' // shim: the status file is there
	MsgStdin      = 'I' // agent: bytes for standard input
	MsgStdinClose = 'E' // agent
	MsgWindow     = 'Z' // agent: rows, columns (2 bytes each)
	MsgSignal     = 'K' // agent: signal number, 1 for the whole tree, 1 for a tty's foreground group
	MsgDiscard    = 'D' // agent: the spool is being removed
)

// MaxMessage bounds a message's body.
const MaxMessage = 64 << 20

// Job is what a shim is told to run.
type Job struct {
	ID   string
	Argv []string // Argv[0] is a path
	Dir  string
	Env  []string
	// User to become, unless KeepUser.
	KeepUser bool
	UID, GID uint32
	Groups   []uint32

	HasStdin  bool // the message carries standard input
	StdinOpen bool
	TTY       bool
	Rows      uint16
	Cols      uint16

	SpoolDir   string // made by the shim
	RunDir     string // for the socket
	Cgroup     string // directory; empty: none
	SpoolLimit uint64
	TimeoutNS  int64
	// Meta is the agent's own record, written to the file meta.
	Meta json.RawMessage
}

// Started answers a Job.
type Started struct {
	PID   int
	Error string // why nothing was started; the shim is gone
	Exist bool   // the spool directory exists: somebody else has the id
}

// Status is how a process ended.
type Status struct {
	PID                  int
	ExitCode             int
	Signal               int
	TimedOut             bool
	FinishedUnixNS       int64
	StdoutEnd, StderrEnd uint64 // written when it ended; what comes later is from those it left behind
	Error                string // it could not be executed
}

// AppendMessage encodes a message.
func AppendMessage(dst []byte, typ byte, body ...[]byte) []byte {
	n := 0
	for _, b := range body {
		n += len(b)
	}
	dst = append(dst, typ)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(n))
	for _, b := range body {
		dst = append(dst, b...)
	}
	return dst
}

// EncodeJob makes a MsgJob.
func EncodeJob(j *Job, stdin []byte) ([]byte, error) {
	b, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	return AppendMessage(nil, MsgJob, binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b, stdin), nil
}

func decodeJob(b []byte) (*Job, []byte, error) {
	if len(b) < 4 {
		return nil, nil, errors.New("job too short")
	}
	n := int(binary.LittleEndian.Uint32(b))
	if n > len(b)-4 {
		return nil, nil, errors.New("job cut off")
	}
	j := new(Job)
	if err := json.Unmarshal(b[4:4+n], j); err != nil {
		return nil, nil, err
	}
	return j, b[4+n:], nil
}

// ReadMessage reads one message; the agent's side uses it.
func ReadMessage(r io.Reader) (typ byte, body []byte, err error) {
	var h [5]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(h[1:])
	if n > MaxMessage {
		return 0, nil, fmt.Errorf("message of %d bytes", n)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(r, body)
	return h[0], body, err
}
