//go:build linux

// Package limactl stands in for Lima's program in tests: the same commands,
// files, listings, messages and exit codes as far as they were observed of
// Lima 2, with real processes for the host agent and the hypervisor. Nothing of
// Lima is in it, and nothing that is shipped uses it.
//
//	if filepath.Base(os.Args[0]) == "limactl" {
//		os.Exit(limactl.Main(os.Args[1:]))
//	}
//
// What it does beside the real program is asked for in the environment:
//
//	LIMACTL_STANDIN_AS_ROOT  runs as root, which the real one refuses
//	LIMACTL_STANDIN_DRIVER   fake: a guest in the hypervisor's process that
//	                         knows our commands and nothing else; qemu: a VM of
//	                         the files below LIMACTL_STANDIN_IMAGE
//	LIMACTL_STANDIN_VERSION  what --version says
//
// Faults are words in the file _faults of LIMA_HOME, see fault.
package limactl
