package sandbox

import (
	"path"
	"strings"

	"sandboxforge/internal/fault"
	"sandboxforge/internal/store"
)

// The guest's ordinary user, which every image has.
const (
	guestUser = "sandbox"
	guestHome = "/home/sandbox"
)

// guestPath makes a caller's guest path absolute: relative ones are taken from
// the synced workspace, else from the home directory.
func guestPath(l store.Lease, p string) string {
	base := l.RemotePath
	if base == "" {
		base = guestHome
	}
	switch {
	case p == "" || p == ".":
		return base
	case p == "~":
		return guestHome
	case strings.HasPrefix(p, "~/"):
		return path.Join(guestHome, p[2:])
	case strings.HasPrefix(p, "/"):
		return path.Clean(p)
	default:
		return path.Join(base, p)
	}
}

// checkGuestPath refuses what no guest path can be.
func checkGuestPath(name, p string) error {
	switch {
	case strings.ContainsRune(p, 0):
		return fault.New(fault.InvalidArgument, "%s contains a NUL byte", name)
	case len(p) > 4096:
		return fault.New(fault.InvalidArgument, "%s has %d bytes; at most 4096 fit", name, len(p))
	}
	return nil
}
