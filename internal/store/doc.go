// Package store is SandboxForge's memory: leases, snapshots, tasks, requests
// and events in one SQLite file that any number of server processes of one user
// share. It is the only package that knows SQL.
//
// It records and it referees. What should happen to a lease is decided in
// package sandbox; what may happen is decided here, by compare-and-set in one
// SQL statement, so that two servers, a server and the clean-up, or a server
// and its own restarted self cannot both believe that they own a VM. It knows
// nothing of VMs, supervisors, MCP or the network, and it never touches a file
// but its own.
//
//	st, err := store.Open(ctx, store.Options{Path: path, Self: store.Self(session)})
//	lease, err := st.Admit(ctx, store.NewLease{...}, store.Limits{MaxInstances: 3})
//	lease, err = st.Move(ctx, lease.InstanceID, lease.Generation, store.Move{To: store.Running})
//
// # The life of a lease
//
//	creating → running → destroying → destroyed
//	                   → expiring   → expired
//	creating, running, destroying, expiring → error → destroying, expiring
//
// Every lease that is not destroyed or expired may still have a VM and counts:
// against the cap of instances (pool and template leases excepted), and with its promised
// memory and disk. That includes error, which keeps its deadline too, until a
// clean-up has confirmed that the VM is gone. A lease that a clean-up owns
// (destroying, expiring, and error on the way back there) never becomes creating
// or running again; the database itself refuses it by trigger.
//
// The generation rises with each change of status, holder or deadline. Holder is
// the process that made the latest move; a creating, destroying or expiring
// lease whose holder is dead is abandoned, and any server may take it over
// (Abandoned, then Move). A pool lease becomes an instance's by Claim, which any
// number of processes may try: one wins.
//
// # Snapshots
//
// A snapshot is a row for a directory, with what an instance needs that begins
// there. It is admitted with the leases of the children that are to begin in it
// (BeginSnapshot: all or none), and stays as long as one of them is active: of a
// delete and an admission at once, one wins.
//
// # Concurrency
//
// There is one writer connection per process and a pool of readers. Every write
// is an immediate transaction: it takes its turn among all processes before it
// reads, so nothing it read can have changed when it writes, and it cannot fail
// half-way for a lock. A write whose context ends while it waits for its turn
// changes nothing; once begun it runs to its end, which takes milliseconds. If
// the turn does not come within 15 s, the error is ErrBusy.
//
// # Representation
//
// Times are integers, milliseconds since 1970 UTC: they compare and index as
// numbers, have one spelling, and no time zone. Everything that goes in is
// truncated to that. Structured values that are only shown again (config, spec,
// timings, errors, results) are JSON text.
//
// # Growth
//
// Prune removes ended leases after TerminalRetention (and all but the newest
// MaxTerminal), with their tasks; events after EventRetention, all but the newest
// MaxEvents even if nobody prunes; finished requests after RequestRetention;
// and the oldest output tails beyond TailBudget.
package store
