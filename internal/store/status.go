package store

import "slices"

// Status is where a lease is in its life.
type Status string

// The statuses; package doc has the picture.
const (
	Creating   Status = "creating"
	Running    Status = "running"
	Destroying Status = "destroying"
	Destroyed  Status = "destroyed"
	Expiring   Status = "expiring"
	Expired    Status = "expired"
	Error      Status = "error"
)

// Statuses lists every status.
func Statuses() []Status {
	return []Status{Creating, Running, Destroying, Destroyed, Expiring, Expired, Error}
}

// moves is the whole law: from each status, those a lease may go to. The moves
// from destroying and expiring to themselves hand a clean-up to another
// process.
var moves = map[Status][]Status{
	Creating:   {Running, Error, Destroying, Expiring},
	Running:    {Destroying, Expiring, Error},
	Error:      {Destroying, Expiring},
	Destroying: {Destroyed, Error, Destroying},
	Expiring:   {Expired, Error, Expiring},
}

// CanMove reports whether a lease may go from one status to another.
func CanMove(from, to Status) bool { return slices.Contains(moves[from], to) }

// sources are the statuses from which a lease may go to a status.
func sources(to Status) []Status {
	var from []Status
	for _, s := range Statuses() {
		if CanMove(s, to) {
			from = append(from, s)
		}
	}
	return from
}

// Terminal: the VM is confirmed gone and the lease only remembered.
func (s Status) Terminal() bool { return s == Destroyed || s == Expired }

// Active: the lease may still have a VM, and counts in admission.
func (s Status) Active() bool { return slices.Contains(Statuses(), s) && !s.Terminal() }

// CleanupOwned: the lease ends, or has ended; it can never be used again.
func (s Status) CleanupOwned() bool {
	return s == Destroying || s == Expiring || s.Terminal()
}

// ending: somebody removes the VM right now, or should be.
func (s Status) ending() bool { return s == Destroying || s == Expiring }
