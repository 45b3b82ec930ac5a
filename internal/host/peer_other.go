//go:build !linux

package host

import (
	"errors"
	"fmt"
	"net"
)

// PeerProcess is not known on this platform: the error wraps
// errors.ErrUnsupported.
func PeerProcess(net.Conn, ...int) (pid int, exe string, err error) {
	return 0, "", fmt.Errorf("the process at the other end of a connection: %w", errors.ErrUnsupported)
}

// PortHolder is not known on this platform.
func PortHolder(int) (name string, pid int) { return "", 0 }
