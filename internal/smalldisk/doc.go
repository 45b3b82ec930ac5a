// Package smalldisk runs a test on a file system that is soon full. It is for
// tests alone.
//
//	dir, inside := smalldisk.Run(t, "2m")
//	if !inside {
//		return // it ran in a process of its own
//	}
package smalldisk
