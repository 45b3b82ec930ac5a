//go:build !linux

package supervisor

import "time"

const scopeTimeout = 3 * time.Second

// scopeCommand: no transient scopes here.
func scopeCommand(string) []string { return nil }
