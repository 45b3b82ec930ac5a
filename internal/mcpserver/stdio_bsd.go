//go:build unix && !linux

package mcpserver

import "golang.org/x/sys/unix"

// replace makes fd a copy of from.
func replace(from, fd int) error { return unix.Dup2(from, fd) }
