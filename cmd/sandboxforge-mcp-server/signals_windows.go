package main

import (
	"os"
	"syscall"
)

// endSignals ask the server to end in order.
var endSignals = []os.Signal{os.Interrupt, syscall.SIGTERM}

// surviveBrokenPipes has nothing to do where a failed write is only an error.
func surviveBrokenPipes() {}
