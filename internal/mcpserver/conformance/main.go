// conformance serves the fixtures that the official MCP conformance suite
// calls (tools, resources and prompts with prescribed names and answers) on
// the transports and middleware of package mcpserver. It is for tests only;
// scripts/conformance.sh builds and drives it.
//
//	conformance -port 0      # prints its URL to stderr, ends with SIGTERM
//
//lint:file-ignore SA1019 the suite for 2025-11-25 exercises what 2026-07-28 deprecates
package main

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"sandboxforge/internal/mcpserver"
)

func main() {
	port := flag.Int("port", 0, "port on 127.0.0.1; 0 takes a free one")
	overStdio := flag.Bool("stdio", false, "serve stdio instead of HTTP")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))

	accept := func(context.Context, *mcp.SubscribeRequest) error { return nil }
	release := func(context.Context, *mcp.UnsubscribeRequest) error { return nil }
	m := mcp.NewServer(&mcp.Implementation{Name: "conformance-fixtures", Version: "1"}, &mcp.ServerOptions{
		SubscribeHandler:   accept,
		UnsubscribeHandler: release,
		CompletionHandler: func(context.Context, *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
			return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{"paris", "park"}}}, nil
		},
	})
	addContentTools(m)
	addClientTools(m)
	addRoundTools(m)
	addResources(m)
	addPrompts(m)

	server := mcpserver.Wrap(m, mcpserver.Options{Logger: log})
	cfg := mcpserver.Config{HTTP: !*overStdio, Host: "127.0.0.1", Port: *port, Stdio: mcpserver.StdioOff}
	stdio := mcpserver.Stdio{Kind: mcpserver.StdinNull}
	if *overStdio {
		cfg.Stdio = mcpserver.StdioOn
		var err error
		if stdio, err = mcpserver.TakeStdio(); err != nil {
			log.Error("cannot serve", "error", err)
			os.Exit(1)
		}
	}
	if err := server.Serve(ctx, cfg, stdio); err != nil {
		log.Error("cannot serve", "error", err)
		os.Exit(1)
	}
}
