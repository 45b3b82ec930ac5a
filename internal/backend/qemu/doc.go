// Package qemu is the backend for stock QEMU on Linux: no root, no daemon, no
// libvirt. On other systems it compiles to a Backend whose Probe says so.
//
// A VM is one directory, StateDir/<name>:
//
//	vm.json      what it was made from; written last, so without it the VM is half-made
//	disk.qcow2   an overlay on the image's root file system
//	vm.lock      locked by the running QEMU itself, through an inherited descriptor
//	run.json     process of the last start, for Inspect and Delete
//	qemu.log     what QEMU printed, bounded
//	console.log  the guest's serial console, bounded
//
// # Who runs
//
// QEMU inherits an open file description of vm.lock that holds the lock, and
// the starter closes its own copy. So the kernel itself answers "does it run":
// the lock is free the moment QEMU is gone, however it went, and no stale pid
// can hold it. Whoever asks queries the lock without taking it.
//
// QEMU gets SIGKILL by the kernel when the process that started it ends
// (DiesWithOwner). Its control channel and console are anonymous socket pairs
// with the owner: nobody else can reach them. The agent's socket is in RunDir.
//
// # What is given up
//
// Disks are disposable: guest flushes reach the host's page cache, not its
// medium. A VM survives kill -9 of QEMU with what its guest flushed, but not a
// crash of the host.
//
// The package must not know of leases, MCP, images' recipes or what the agent
// says. machine construction is args.go alone.
//
//	b, err := qemu.New(qemu.Config{StateDir: …, RunDir: …, CacheDir: …, Images: finder})
package qemu
