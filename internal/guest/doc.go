// Package guest is the host's side of the guest agent's protocol.
//
// A Conn is the link to one agent over one byte stream; a Client is the
// protocol over any HTTP/2 round-tripper that reaches an agent:
//
//	conn, err := guest.Connect(ctx, port)          // in the process that owns the VM
//	p, err := conn.Client().Run(ctx, id, guest.Spec{Command: "make"}, onOutput)
//
//	c := guest.NewClient(guest.DialHTTP2(dial))    // elsewhere, through a Proxy
//
// Everything a guest answers is hostile input: messages are bounded, names,
// offsets and states are checked before they are returned, and what does not
// hold is ErrProtocol. Contents (output, file data, tar streams) are returned
// as they come.
//
// Errors are tested with errors.Is against the package's kinds. The package
// knows nothing of hypervisors, leases or MCP.
package guest
