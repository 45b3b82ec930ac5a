package cli

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"

	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
)

// Main runs one command line (without the program's name) and returns the exit
// code of package cli's documentation.
func Main(args []string, env Env) int {
	root := New(&env)
	root.SetArgs(args)
	cmd, err := root.ExecuteC()
	if err == nil {
		return exitOK
	}
	var code exitCode
	if errors.As(err, &code) {
		return int(code) // the command has already said what there is to say
	}
	asJSON := false
	if f := cmd.Flags().Lookup("json"); f != nil {
		asJSON = f.Value.String() == "true"
	}
	printError(env.Stderr, err, asJSON)
	return codeOf(err, cmd)
}

// New makes the command tree.
func New(env *Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "sandboxforge",
		Short: "Disposable virtual machines for AI agents: the operator's command line",
		Long: `sandboxforge looks after the disposable virtual machines that the MCP server
(sandboxforge-mcp-server) makes for AI agents: what the host needs, guest
images, running instances, their output and their end. It makes none itself:
agents do that over MCP, and so they fork, snapshot and restore them.

Exit codes: 0 done; 1 failed; 2 wrong usage or a bad environment variable;
125 exec could not run its command; 130 interrupted. exec otherwise ends with
its command's exit code.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       env.Version,
		Args:          noArgs,
	}
	root.SetVersionTemplate("sandboxforge {{.Version}}\n")
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.AddGroup(
		&cobra.Group{ID: "host", Title: "The host:"},
		&cobra.Group{ID: "instance", Title: "Instances:"},
	)
	for _, c := range []*cobra.Command{doctorCommand(env), imageCommand(env), templateCommand(env), demoCommand(env), gcCommand(env), benchCommand(env)} {
		c.GroupID = "host"
		root.AddCommand(c)
	}
	for _, c := range []*cobra.Command{psCommand(env), execCommand(env), logsCommand(env), destroyCommand(env), snapshotCommand(env)} {
		c.GroupID = "instance"
		root.AddCommand(c)
	}
	root.AddCommand(versionCommand(env), environmentTopic())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	return root
}

// environmentTopic is `sandboxforge help environment`.
func environmentTopic() *cobra.Command {
	var b strings.Builder
	b.WriteString("Environment variables and their defaults:\n")
	for _, v := range config.EnvVars() {
		b.WriteString("\n  " + v.Name)
		if v.Default != "" {
			b.WriteString(" (" + v.Default + ")")
		}
		b.WriteString("\n      " + v.Doc + "\n")
	}
	return &cobra.Command{Use: "environment", Short: "The environment variables that the programs read", Long: b.String()}
}

// interruptible gives a command a context that ends with an interrupt or a
// request to terminate.
func interruptible(run func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		ctx, stop := signal.NotifyContext(ctx, interrupts...)
		defer stop()
		err := run(ctx, args)
		if ctx.Err() != nil && fault.Is(err, fault.Cancelled) {
			return &interruptedError{err}
		}
		return err
	}
}

// argsError adds what would be right to what is wrong.
func argsError(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return usagef("%w: %s", err, cmd.UseLine())
}

// noArgs is for commands that take none, and for those that only have commands
// below them.
func noArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !cmd.HasAvailableSubCommands():
		return argsError(cmd, fmt.Errorf("%q is one argument too many", args[0]))
	}
	e := fault.New(fault.InvalidArgument, "unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = max(cmd.SuggestionsMinimumDistance, 2) // cobra's own default, which it sets later
	for _, near := range cmd.SuggestionsFor(args[0]) {
		e.Next("did you mean `%s %s`?", cmd.CommandPath(), near)
	}
	if agentsWork[args[0]] {
		e.Because("agents do that over MCP; this program looks after what they made")
		e.Next("connect a client to sandboxforge-mcp-server: README.md, “Connecting clients”")
	}
	return usage(e.Next("run `%s --help` for the commands there are", cmd.CommandPath()))
}

// agentsWork is what people look for here because other tools have it there.
var agentsWork = map[string]bool{
	"create": true, "run": true, "start": true, "new": true, "up": true, "launch": true,
	"fork": true, "restore": true, "sync": true, "cp": true, "extend": true,
}

func atLeast(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n {
			return argsError(cmd, fmt.Errorf("%s is missing", strings.Fields(cmd.Use)[1+len(args)]))
		}
		return nil
	}
}

func exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := atLeast(n)(cmd, args); err != nil {
			return err
		}
		return atMost(n)(cmd, args)
	}
}

func atMost(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return argsError(cmd, fmt.Errorf("%q is one argument too many", args[n]))
		}
		return nil
	}
}
