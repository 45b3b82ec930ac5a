//go:build unix

package hostpath

import "syscall"

// openFlags keep a FIFO from blocking the open and a symlink from being
// followed where os.Root would do so.
const openFlags = syscall.O_NONBLOCK | syscall.O_NOFOLLOW
