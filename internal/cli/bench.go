package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sandboxforge/internal/backends"
	"sandboxforge/internal/bench"
	"sandboxforge/internal/cli/ui"
	"sandboxforge/internal/config"
)

func benchCommand(env *Env) *cobra.Command {
	var asJSON bool
	var svg string
	var o bench.Options
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure creates, forks, commands, syncs and memory on this host",
		Long: `Measure what a user waits for, through the real server over MCP: cold, cloned and
warm creates, several at once, forks, commands, syncs, idle memory. Everything
happens in a state directory of its own, with the default guest image, and
leaves nothing behind but the template. Compare figures of one run only;
machines differ.

Parts for --only: ` + strings.Join(bench.Parts(), ", ") + ".",
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
			o.Floor = func(ctx context.Context, home, state string, round int) (func(context.Context) error, func() error, error) {
				// A directory that no server sweeps.
				own, err := config.LoadSettings(func(k string) string {
					if k == "SANDBOXFORGE_HOME" {
						return home
					}
					return env.Getenv(k)
				}, runtime.GOOS)
				if err != nil {
					return nil, nil, err
				}
				return backends.New(own, slog.New(slog.DiscardHandler)).Floor(ctx, state, round)
			}
			o.Progress = func(step string) { progress.Update("measuring", step) }
			r, err := bench.Run(ctx, o)
			progress.Close()
			if err != nil {
				return err
			}
			if svg != "" {
				if err := writePlots(svg, r); err != nil {
					return err
				}
			}
			if asJSON {
				return writeJSON(env.Stdout, r)
			}
			return printBench(env.Stdout, r)
		}),
	}
	cmd.Flags().IntVar(&o.Cold, "cold", 3, "cold creates to measure, 1 to 100")
	cmd.Flags().IntVar(&o.Rounds, "rounds", 30, "rounds of what takes about a second or less, 1 to 1000")
	cmd.Flags().IntVar(&o.Files, "files", 10_000, "files of 4 KiB in the sync, 1 to 100000")
	cmd.Flags().IntVar(&o.BulkMiB, "bulk-mib", 1024, "size of the large file in the sync, 1 to 8192 MiB")
	cmd.Flags().IntVar(&o.CPUs, "cpus", 0, "vCPUs of each VM (default: the configuration's)")
	cmd.Flags().StringVar(&o.ServicesImage, "services-image", "", "guest image for the part services: one that has images of MySQL and Redis, or default where the VM can pull them; without it the part is left out")
	cmd.Flags().StringSliceVar(&o.Only, "only", nil, "run only these parts, comma-separated")
	cmd.Flags().StringVar(&svg, "svg", "", "also write charts into this directory")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		for _, b := range []struct {
			flag     string
			value    int
			from, to int
		}{{"cold", o.Cold, 1, 100}, {"rounds", o.Rounds, 1, 1000}, {"files", o.Files, 1, 100_000}, {"bulk-mib", o.BulkMiB, 1, 8192}} {
			if b.value < b.from || b.value > b.to {
				return usage(fmt.Errorf("--%s must be %d to %d", b.flag, b.from, b.to))
			}
		}
		for _, p := range o.Only {
			if !slices.Contains(bench.Parts(), p) {
				return usage(fmt.Errorf("there is no part %q; the parts are %s", p, strings.Join(bench.Parts(), ", ")))
			}
		}
		return nil
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// writePlots writes the charts of a report.
func writePlots(dir string, r *bench.Report) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, figures := range r.Plots() {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		title := fmt.Sprintf("%s, %s/%s, %s", strings.TrimSuffix(name, ".svg"), r.Backend, r.Accelerator, r.VM)
		if err := errors.Join(bench.Plot(f, title, figures), f.Close()); err != nil {
			return err
		}
	}
	return nil
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
