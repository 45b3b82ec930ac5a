// Package qmp is a small client for QMP, QEMU's control protocol: JSON objects
// over one byte stream, commands answered by id, events in between.
//
// A command waits for its own answer under its own context and never for
// another's; an event that nobody reads is dropped and counted, never a reason
// to stop reading answers. QEMU's side is not trusted: a guest that broke out
// of its VM speaks here too, so one message is bounded in size and a malformed
// one ends the connection.
//
// The package knows nothing of VMs, files or processes.
//
//	c, err := qmp.Connect(ctx, conn)
//	err = c.Do(ctx, "query-status", nil, &status)
//	for e := range c.Events() { ... }          // closed when the connection ends
package qmp
