// Command sandboxforge-init is /init of the guest's initrd: process 1 from the
// kernel's hand-over until the root file system's own init takes its place.
//
// It loads the few modules that the root device and the network need, mounts
// the root device, brings up the network with the fixed address that the
// kernel command line names, makes the device links that udev would otherwise
// be started for, and executes the real init. It is written for emulated
// machines, where each process start costs tens of milliseconds: nothing is
// executed on the way.
//
// What it reads from the kernel command line:
//
//	root=/dev/vda                 root device (default /dev/vda)
//	rootflags=noatime             mount options for it
//	sandboxforge.init=PATH[,ARG]  what to execute (default /sbin/init)
//	sandboxforge.net=ADDR/BITS,GATEWAY[,DEVICE]
//	sandboxforge.hostname=NAME
//
// A failure prints `sandboxforge-init: fatal: …` on the console and powers the
// machine off, so that whoever waits for the guest need not wait for a
// deadline. Anything that is only inconvenient prints `sandboxforge-init:
// warning: …` and goes on.
//
// It knows nothing of the agent's protocol and nothing of how images are built
// but the two module lists named in modules.go.
package main
