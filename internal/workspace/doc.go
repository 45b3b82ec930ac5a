// Package workspace moves files between a directory on the host and one in a
// guest: sync in both directions, copies, and the collection of artifacts.
//
// # The sync
//
// A manifest remembers, for an instance and a remote path, what both sides
// agreed on after the last sync: the ancestor. Each direction scans both
// sides, and a pure function of (ancestor, host, guest) says what to do:
//
//   - Up sends what is new or changed on the host. It replaces a guest's file
//     only if the guest has not changed it, and deletes in the guest only what
//     a sync put there, the host removed since and the guest left alone.
//   - Down brings what is new or changed in the guest. It replaces or deletes
//     a host's file only if the host has not changed it since the sync that
//     put it there.
//
// What changed on both sides is a conflict: reported, left alone on both, and
// no obstacle to the other files. A file that only the guest has deleted comes
// back with Up; a file that only the host has deleted stays away with Down.
//
// Content decides, times only save work: a file is taken as unchanged without
// reading it when size, mtime, ctime and inode are those that were recorded,
// and the record was not made in the moment of a change. FullCheck reads all.
//
// # Trust
//
// The guest's word is worth nothing. Names are checked, only entries that were
// asked for are taken from a tar stream, sizes are held against what was
// announced and against the free disk, nothing is written through a symlink,
// and what the host would execute or trust unasked (hostpath.Trust) is refused.
// Symlinks of the workspace are sent as symlinks, never followed, wherever they
// point; symlinks of the guest arrive only if they stay inside.
//
// # Interruption
//
// A file appears by rename, whole or not at all, on both sides. Before a
// transfer the manifest says what is intended, after it what is true, also
// when it was cancelled, so that the next run converges.
//
//	res, err := workspace.Up(ctx, workspace.Request{Guest: g, Local: loc, Remote: "/workspace", ManifestDir: dir})
//
// The package knows nothing of leases, backends, MCP or the guest protocol: it
// asks a Guest.
package workspace
