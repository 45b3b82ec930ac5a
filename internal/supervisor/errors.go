package supervisor

import "errors"

// Error kinds, wrapped by the faults that this package returns.
var (
	// ErrNotRunning: no supervisor serves the socket. Whether its VM ended in
	// order is told by ReadEnd.
	ErrNotRunning = errors.New("no supervisor is running")
	// ErrEnded: the VM has ended or is being taken down.
	ErrEnded = errors.New("the VM has ended")
	// ErrVersion: the two sides do not speak a common protocol version.
	ErrVersion = errors.New("incompatible supervisor version")
	// ErrNoEnd: there is no end.json.
	ErrNoEnd = errors.New("no end is recorded")
	// ErrCorrupt: a file of the instance directory cannot be understood.
	ErrCorrupt = errors.New("damaged file")
)
