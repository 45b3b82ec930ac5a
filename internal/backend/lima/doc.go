// Package lima is the backend for hosts with limactl: macOS, and Linux without
// a usable QEMU of our own.
//
//	b, err := lima.New(lima.Config{StateDir: ..., LimaHome: ...})
//
// # What belongs to whom
//
// A VM is a Lima instance of the same name in a LIMA_HOME that is SandboxForge's
// alone, and a directory below Config.StateDir with its record, its locks and
// what limactl printed. The record is written before the instance is made, and
// the instance is gone before the record goes. The hypervisor belongs to Lima's
// host agent, not to the process that called Start: it does not die with its
// owner, and who finds it without one deletes it.
//
// # Isolation
//
// Lima's defaults are made for working on the host's own files. Every switch
// that undoes this is given when an instance is made, and none is trusted: the
// effective configuration is read back after that and before each start, and an
// instance that would mount a directory, forward a port, copy files to the host,
// take the host's ssh agent or proxies along, or join another network is not
// started (isolation.go). What cannot be closed is said in Capabilities: the
// guest reaches the host's loopback and whatever the host can route to.
//
// # Speed
//
// A VM is reached over one ssh connection (package sshlink), never by a limactl
// per command. Prepare makes a stopped instance with the agent installed for
// each kind of VM, its base; Create then clones it.
//
// # Commands
//
// Each limactl has a deadline and a process group of its own, and what it does
// not do in time is done by force. A command that changes an instance inherits
// the lock of its operation: when its caller is killed, the next operation waits
// for it instead of running beside it. Output is parsed as hostile input:
// warnings between the lines of JSON are skipped, half a value is an error and
// never a VM that is not there.
package lima
