package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"sandboxforge/internal/agent"
	"sandboxforge/internal/agent/shim"
	"sandboxforge/internal/version"
)

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	switch os.Args[1] {
	case "serve":
		os.Exit(serve(os.Args[2:]))
	case "relay":
		os.Exit(relay(os.Args[2:]))
	case "init":
		os.Exit(agent.Init(os.Args[0]))
	case "shim":
		os.Exit(shim.Main())
	case "version":
		fmt.Println(version.String())
	default:
		usage()
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: sandboxforge-agent serve|relay|init|shim|version")
	os.Exit(2)
}

func serve(args []string) int {
	opts := agent.ServeOptions{Version: version.String()}
	fs := flag.NewFlagSet("serve", flag.ExitOnError)
	fs.StringVar(&opts.Port, "port", agent.PortPath, "virtio port to serve on")
	fs.StringVar(&opts.Socket, "socket", "", "serve on a unix socket instead")
	fs.StringVar(&opts.State, "state", "", "directory for run-time files and spools instead of /run and /var/lib")
	fs.Parse(args) //nolint:errcheck // exits on error
	opts.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := agent.ServeGuest(ctx, opts); err != nil {
		opts.Log.Error("agent ended", "error", err)
		return 1
	}
	return 0
}

func relay(args []string) int {
	fs := flag.NewFlagSet("relay", flag.ExitOnError)
	socket := fs.String("socket", agent.SocketPath, "unix socket of a serve")
	fs.Parse(args) //nolint:errcheck // exits on error
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt, syscall.SIGHUP)
	defer stop()
	if err := agent.Relay(ctx, *socket, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sandboxforge-agent:", err)
		return 1
	}
	return 0
}
