// Package shim is the parent of one process in the guest.
//
// The agent may be restarted or killed while commands run. So each command has
// a small process of its own between it and the agent: the shim starts it,
// copies its output to bounded spool files, feeds its standard input, enforces
// its timeout and records how it ended. The shim lives outside the command's
// cgroup; it ends when the command has ended and nobody holds its output any
// more. A new agent finds the shims again by their sockets.
//
// Main runs a shim. It waits for one Job on file descriptor 3, which it is
// handed by the agent; an agent that goes away before that ends it. So an agent
// can start shims ahead of need.
//
//	spool/<id>/meta     what was asked for (written by the shim, read by a new agent)
//	spool/<id>/stdout   the stream, offsets are absolute, holes where bytes were dropped
//	spool/<id>/stderr
//	spool/<id>/state    counters, mapped into shim and agents
//	spool/<id>/status   how it ended; appears by rename
//	run/<id>.sock       control, see wire.go
//
// The package knows nothing of HTTP, protobuf or the host, and imports little:
// its start is paid for by every command.
package shim
