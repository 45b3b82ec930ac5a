//go:build linux

// Command limactl stands in for Lima's in tests, see internal/standin/limactl.
package main

import (
	"os"

	"sandboxforge/internal/standin/limactl"
)

func main() { os.Exit(limactl.Main(os.Args[1:])) }
