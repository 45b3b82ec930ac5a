package guest

// ErrUnsent is for round-trippers outside this package: an error that wraps it
// tells Proxy, and through it the far Client, that the request never left.
var ErrUnsent = errUnsent
