//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "sandboxforge-init: this is process 1 of a Linux guest; there is nothing for it to do here")
	os.Exit(2)
}
