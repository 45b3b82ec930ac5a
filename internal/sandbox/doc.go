// Package sandbox decides. It holds the leases' life cycle and every
// operation that a client can ask for: making and destroying instances,
// running commands, moving files. The MCP server and the command line are two
// faces of the one Service here.
//
// It knows leases (through store), VMs (through backend and supervisor) and
// the guest (through the guest client). It does not know MCP, SQL, or any
// hypervisor, and it never runs or reads anything of a workspace on the host
// except through hostpath and config, which treat it as hostile.
//
//	svc, err := sandbox.Open(ctx, sandbox.Options{Settings: settings, ...})
//	defer svc.Close()
//	inst, err := svc.CreateInstance(ctx, sandbox.CreateInstanceRequest{WorkspaceRoot: dir})
//
// Every method may be called concurrently. A method's context carries the
// caller's deadline and cancellation; work that must be finished regardless
// (undoing a half-made instance) runs on a context of its own.
package sandbox
