//go:build !linux

package mcpserver

import "strings"

// isAddrInUse knows what Windows says, where the error number is another.
func isAddrInUse(err error) bool {
	return strings.Contains(err.Error(), "Only one usage of each socket address")
}

// container is not detected on this platform.
func container() string { return "" }
