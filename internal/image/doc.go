// Package image builds and keeps guest images: a kernel, an initrd and a root
// file system, made from a distribution's packages by a recipe.
//
//	recipe, err := image.Default(runtime.GOARCH)
//	store := image.Store{Dir: filepath.Join(home, "images")}
//	img, err := store.Build(ctx, recipe, image.BuildOptions{Progress: show})
//
// A build has two stages, each cached by the digest of all that goes into it.
// Stage one lets mmdebstrap turn package names into a tar archive of an
// installed system: minutes. Stage two filters that archive, adds the files of
// this package (package folder files/) and the guest's executables, and makes a
// file system of the result with mkfs.ext4 -d: seconds. A changed agent costs
// only stage two.
//
// Neither stage needs root, a loop device or a mount: an ordinary user works
// through user namespaces (newuidmap and ranges in /etc/subuid).
//
// Invariants. A directory that List, Find or Build returns was complete and on
// disk before it got its name. A build that was killed leaves only files that
// the next build of the same image removes. Two builds of one image do not run
// at once, in whichever process.
//
// The package knows nothing of backends, leases or MCP. It decides what boots
// fast (unit files, masks, module lists, Cmdline); how QEMU is started is the
// backend's business.
package image
