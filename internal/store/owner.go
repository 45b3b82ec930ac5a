package store

import "os"

// Owner names a process such that a later process can tell whether it still
// lives: by pid, and against a reused pid by the host's boot and the process's
// start. Session is MCP_SESSION_ID, for people.
type Owner struct {
	Session string
	PID     int
	Boot    string
	Start   string
}

// Self is this process. Boot and Start are empty where the platform does not
// tell; then only the pid is compared.
func Self(session string) Owner {
	pid := os.Getpid()
	start, _ := processStart(pid)
	return Owner{Session: session, PID: pid, Boot: bootID(), Start: start}
}

// ProcessAlive reports whether the process that o names still runs on this
// host. When it cannot tell it says yes: taking work from a living process
// does harm, waiting for a dead one only costs time.
func ProcessAlive(o Owner) bool {
	if o.PID <= 0 {
		return false
	}
	if boot := bootID(); o.Boot != "" && boot != "" && o.Boot != boot {
		return false
	}
	start, running := processStart(o.PID)
	if !running {
		return false
	}
	return o.Start == "" || start == "" || o.Start == start
}

func (o Owner) samePlace(p Owner) bool {
	return o.PID == p.PID && o.Boot == p.Boot && o.Start == p.Start
}
