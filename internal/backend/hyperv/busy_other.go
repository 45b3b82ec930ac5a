//go:build !windows

package hyperv

// Files in use can be renamed and removed here.
func isBusy(error) bool { return false }

// unusable: these properties of a file are Windows' own.
func unusable(string) string { return "" }
