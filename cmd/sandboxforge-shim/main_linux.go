package main

import (
	"os"

	"sandboxforge/internal/agent/shim"
)

func main() { os.Exit(shim.Main()) }
