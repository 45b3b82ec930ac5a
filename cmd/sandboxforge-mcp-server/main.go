// sandboxforge-mcp-server is the MCP server: what MCP clients spawn for stdio,
// or what runs by hand or as a service for streamable HTTP. Everything is
// configured by environment variables.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"sandboxforge/internal/backends"
	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/mcpserver"
	"sandboxforge/internal/sandbox"
	"sandboxforge/internal/supervisor"
	"sandboxforge/internal/version"
)

func main() {
	if handled, code := supervisor.Main(os.Args); handled {
		os.Exit(code)
	}
	os.Exit(run(os.Args[1:]))
}

// run returns the exit code: 0 for an orderly end, 1 for a failure, 2 for
// wrong usage or a bad environment.
func run(args []string) int {
	code := 0
	cmd := &cobra.Command{
		Use:               "sandboxforge-mcp-server",
		Short:             "MCP server that gives AI agents disposable virtual machines",
		Long:              long(),
		Version:           version.String(),
		Args:              cobra.NoArgs,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		RunE: func(cmd *cobra.Command, _ []string) error {
			code = serve(cmd.Context())
			return nil
		},
	}
	cmd.SetArgs(args)
	// Standard output is the protocol's: help goes to stderr. The version is
	// for scripts, and nothing is served then.
	cmd.SetOut(os.Stderr)
	cmd.SetErr(os.Stderr)
	cmd.SetHelpCommand(&cobra.Command{Hidden: true, Use: "no-help"})
	cmd.SetVersionTemplate("{{/* printed below */}}")
	cmd.SetHelpFunc(func(c *cobra.Command, _ []string) { fmt.Fprintf(os.Stderr, "%s\n\n%s", c.Long, c.UsageString()) })
	if err := cmd.Execute(); err != nil {
		fmt.Fprintf(os.Stderr, "sandboxforge-mcp-server: %v\n\n%s", err, cmd.UsageString())
		return 2
	}
	if v, err := cmd.Flags().GetBool("version"); err == nil && v {
		fmt.Println("sandboxforge-mcp-server " + version.String())
	}
	return code
}

func long() string {
	var b strings.Builder
	b.WriteString(`MCP server that gives AI agents disposable virtual machines.

It serves stdio if an MCP client has started it, and streamable HTTP on
http://127.0.0.1:8765/mcp. It is configured by the environment:
`)
	for _, v := range config.EnvVars() {
		if !strings.HasPrefix(v.Name, "HYPERV_") || runtime.GOOS == "windows" {
			b.WriteString("\n  " + v.Name)
			if v.Default != "" {
				b.WriteString(" (" + v.Default + ")")
			}
			b.WriteString("\n      " + v.Doc)
		}
	}
	return b.String()
}

func serve(ctx context.Context) int {
	if ctx == nil {
		ctx = context.Background()
	}
	settings, err := config.LoadSettings(os.Getenv, runtime.GOOS)
	if err == nil {
		err = settings.ResolveHTTP()
	}
	if err != nil {
		complain(err)
		return 2
	}
	// From here on standard output carries nothing but the protocol.
	stdio, err := mcpserver.TakeStdio()
	if err != nil {
		complain(err)
		return 1
	}
	lines := mcpserver.NewLogWriter(os.Stderr)
	defer lines.Close()
	log := mcpserver.NewLogger(lines, settings.LogLevel, settings.LogFormat)
	for _, w := range settings.Warnings {
		log.Warn(w)
	}
	if dir, err := os.Getwd(); err == nil {
		if old := config.OldDatabase(dir, settings); old != "" {
			log.Warn("a lease database of the earlier version is left in the working directory: it is not used, and instances in it are not known here", "found", old, "used", settings.LeaseDBPath)
		}
	}
	surviveBrokenPipes()
	ctx, stop := signal.NotifyContext(ctx, endSignals...)
	defer stop()

	svc, err := sandbox.Open(ctx, sandbox.Options{Settings: settings, Backends: backends.New(settings, log), Logger: log})
	if err != nil {
		return failed(log, lines, err)
	}
	defer func() {
		if err := svc.Close(); err != nil {
			log.Warn("closing", "error", err)
		}
	}()
	svc.StartSweeper()
	svc.CheckBackend()
	server := mcpserver.New(mcpserver.Options{
		Service: svc, Logger: log, Session: settings.SessionID,
		RefusePeer: newPeers(log, settings.HTTPToken != "").refuse,
	})
	if err := server.Serve(ctx, mcpserver.ConfigFrom(settings), stdio); err != nil && !errors.Is(err, context.Canceled) {
		return failed(log, lines, err)
	}
	return 0
}

func failed(log *slog.Logger, lines io.Closer, err error) int {
	f := fault.From(err)
	d := f.DetailMap()
	steps, _ := d["next_steps"].([]string)
	log.Error("cannot serve", "error", f.Error(), "probable_cause", d["probable_cause"], "next_steps", strings.Join(steps, "; "))
	lines.Close()
	return 1
}

// complain is for what is wrong before the log is set up.
func complain(err error) {
	f := fault.From(err)
	fmt.Fprintf(os.Stderr, "sandboxforge-mcp-server: %s\n", f.Error())
	for _, s := range f.NextSteps {
		fmt.Fprintf(os.Stderr, "  next: %s\n", s)
	}
}
