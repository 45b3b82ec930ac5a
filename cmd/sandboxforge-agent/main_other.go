//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "sandboxforge-agent: runs in Linux guests only")
	os.Exit(1)
}
