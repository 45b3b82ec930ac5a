// Command sandboxforge is the operator's command line; see package cli.
package main

import (
	"os"

	"sandboxforge/internal/cli"
	"sandboxforge/internal/supervisor"
)

func main() {
	// First of all: a supervisor is this executable, started again.
	if handled, code := supervisor.Main(os.Args); handled {
		os.Exit(code)
	}
	os.Exit(cli.Main(os.Args[1:], cli.System()))
}
