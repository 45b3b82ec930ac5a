// Package agent is SandboxForge's side inside the guest: processes, files,
// sockets and the guest's own identity, served over HTTP/2 on a link.
//
// An Agent is a root service of the guest that outlives every connection. Its
// processes outlive it too: each has a shim (package shim) as its parent, and a
// new Agent on the same directories adopts what it finds.
//
//	a, err := agent.New(agent.Config{...})
//	err = a.Serve(ctx, link.NewListener(port))
//
// The host is trusted, the guest's file system is not: names are resolved
// beneath a root without following symlinks wherever the host's request does
// not name the path itself, and special files are never opened blocking.
//
// The package knows nothing of hypervisors, leases, MCP or Docker. It runs on
// Linux only.
package agent
