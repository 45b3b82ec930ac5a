//go:build unix

package main

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// endSignals ask the server to end in order.
var endSignals = []os.Signal{os.Interrupt, unix.SIGTERM, unix.SIGHUP}

// surviveBrokenPipes keeps a client that closes our stderr from ending the
// server, which may serve others over HTTP: the write fails instead. The
// signal is caught and not ignored, since children inherit what is ignored.
func surviveBrokenPipes() {
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
}
