//go:build !amd64

package host

// TSCKilohertz is 0: there is no such counter.
func TSCKilohertz() int64 { return 0 }
