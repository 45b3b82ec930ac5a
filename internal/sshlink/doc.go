// Package sshlink reaches the agent of a guest over ssh, for hypervisors whose
// guests have no virtio port: one connection in this process, on which nothing
// runs but a relay to the agent's socket. The stream it returns is what a
// Machine's DialAgent returns; package link and everything above it are the
// same as on a port.
//
//	l := sshlink.New(sshlink.Config{
//		Address: "127.0.0.1:40022", User: "ubuntu", Signer: key,
//		HostKeys: []ssh.PublicKey{pinned},
//	})
//	defer l.Close()
//	stream, err := l.Dial(ctx)
//
// # What a connection does
//
// It waits for sshd with growing pauses, since the guest may still boot. It then
// asks the guest, in the same command that becomes the relay, whether the agent
// there is the one of this build and runs. If not, it installs it: the
// executables, a root service of systemd, and what SandboxForge's own images
// have and a distribution's lack (the user sandbox with sudo, /workspace). Each
// step is idempotent, files appear by rename, and a connection that is cut at
// any moment is followed by one that does what is missing.
//
// The agent outlives every connection: its processes and their output stay, and
// a new connection takes the place of the old.
//
// # Trust
//
// A host key that is not pinned is refused. Where nothing can be pinned before
// the first contact, Config.FirstUse decides, and what it accepts is pinned for
// the life of the Link. The guest is hostile: what it says before the relay
// begins is bounded and parsed strictly, and after that it is package link's.
//
// The package knows nothing of backends, leases or what the stream carries.
package sshlink
