package host

import "errors"

// ErrPeerUnknown: no process could be found that holds the other end of a
// connection. It is on another machine, has ended, or is another user's, whose
// descriptors are not shown.
var ErrPeerUnknown = errors.New("the process at the other end of the connection is not known")
