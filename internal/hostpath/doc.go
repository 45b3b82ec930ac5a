// Package hostpath decides which places of the host's file system a tool may
// touch, and touches them.
//
// Two kinds of input are hostile here: paths that a client names, and names
// that come out of a guest or lie in a workspace. The package answers three
// questions, in this order:
//
//   - Is this directory fit to be a workspace root? CheckWorkspaceRoot.
//   - Does this path lie inside what a call may use? Policy.Resolve, which
//     follows symlinks to find the truth and returns a root and a relative
//     path. Policy.Open goes there without following any.
//   - Is this a place whose content the host executes or trusts unasked?
//     Trust.Check, in any spelling that some file system takes for the same.
//
// A Dir is an open directory that was reached component by component with no
// symlink on the way; each step compares what was looked at with what was
// opened, so that a swap in between is noticed. Files are opened non-blocking
// and must be regular. Written files appear by rename, whole or not at all,
// never with setuid, setgid or sticky bits.
//
//	root, rel, err := policy.Resolve(path)
//	dir, name, err := root.Parent(rel)
//	t, err := dir.Create(0o644)
//	io.Copy(t, src)
//	err = t.Commit(name, nil)
//
// The package knows nothing of guests, leases, sync or configuration files.
package hostpath
