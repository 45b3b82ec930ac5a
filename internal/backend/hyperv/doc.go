// Package hyperv is the backend for Windows: VMs of Hyper-V, driven through its
// PowerShell cmdlets.
//
// A VM is a directory in Config.StorageDir with a record, a differencing disk
// on the base disk, a seed for cloud-init on an ISO, the keys of its ssh
// connection, and Hyper-V's own files; and a virtual machine in Hyper-V, which
// is known by its Id. Names are no keys there: they may repeat. Our machines
// carry a marker in their notes, and one without it is never touched.
//
//	b, err := hyperv.New(hyperv.Config{StorageDir: dir, BaseVHDX: base, SwitchName: "Default Switch", ...})
//	err = b.Create(ctx, spec)
//	m, err := b.Start(ctx, spec.Name)
//
// # Order
//
// The directory and the record come first, then disk and seed, then the
// machine, which has its marker before it has a disk, and last the record of its
// Id. Whatever is half made is found by the record or by the marker, and the
// next Create or Delete of that name removes it.
//
// # The guest
//
// Any cloud image with the NoCloud source works as a base. Each VM gets a
// user with a public key, and a host key of its own through the seed: the
// ssh connection is to that guest or to none, whatever address it was found
// at. The address is asked for at each connection, never kept: the subnet of
// Windows' own switch changes with each start of the host.
//
// # What differs from other backends
//
// The machine is vmms's, not its owner's: it goes on when the owner dies, and
// reconciliation or the guest's own deadline ends it. The end is seen by
// asking, so up to Config.Poll later. There is no console: Machine.Console is
// what is known of the boot.
//
// # What was never run
//
// None of this has met a real Hyper-V. It was written from the documentation of
// the cmdlets and from reports of others, and run against package standin.
package hyperv
