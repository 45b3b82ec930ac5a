package cli

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"sandboxforge/internal/bench"
	"sandboxforge/internal/cli/ui"
)

func benchCommand(env *Env) *cobra.Command {
	var asJSON bool
	var o bench.Options
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure creates, commands, syncs and memory on this host",
		Long: `Measure what a user waits for, through the real server over MCP: cold creates,
the agent's answer, commands, a sync of many files, idle memory. Everything
happens in a state directory of its own, with the default guest image, and
leaves nothing behind. Compare figures of one run only; machines differ.`,
		Args: noArgs,
		RunE: interruptible(func(ctx context.Context, _ []string) error {
			s, err := env.settings()
			if err != nil {
				return err
			}
			if o.Server, err = env.findServer(); err != nil {
				return err
			}
			progress := ui.NewProgress(env.Stderr, ui.ProgressOptions{})
			defer progress.Close()
			o.Settings, o.Environ, o.Version = s, os.Environ(), env.Version
			o.Progress = func(step string) { progress.Update("measuring", step) }
			r, err := bench.Run(ctx, o)
			progress.Close()
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(env.Stdout, r)
			}
			return printBench(env.Stdout, r)
		}),
	}
	cmd.Flags().IntVar(&o.Creates, "creates", 3, "cold creates to measure, 1 to 100")
	cmd.Flags().IntVar(&o.Files, "files", 2000, "files of 4 KiB in the sync, 1 to 100000")
	cmd.Flags().IntVar(&o.CPUs, "cpus", 0, "vCPUs of each VM (default: the configuration's)")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if o.Creates < 1 || o.Creates > 100 || o.Files < 1 || o.Files > 100_000 {
			return usage(fmt.Errorf("--creates must be 1 to 100 and --files 1 to 100000"))
		}
		return nil
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func printBench(w io.Writer, r *bench.Report) error {
	fmt.Fprintf(w, "%s, SandboxForge %s\nhost  %s; load %s\nVM    %s on %s/%s\n\n",
		r.At.Format("2006-01-02 15:04 UTC"), r.Version, r.Host, r.Load, r.VM, r.Backend, r.Accelerator)
	t := ui.NewTable("FIGURE", "P50", "P95", "MIN", "MAX", "UNIT", "N")
	for _, f := range r.Figures {
		t.Row(f.Row()...)
	}
	_, err := t.WriteTo(w)
	return err
}
