//go:build race && unix

package supervisor

// The race detector's shadow memory is not a supervisor's.
const raceEnabled = true
