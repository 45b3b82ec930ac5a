//go:build !race && unix

package supervisor

const raceEnabled = false
