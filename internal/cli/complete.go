package cli

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"sandboxforge/internal/cli/ui"
	"sandboxforge/internal/sandbox"
)

// completeTime is how long a key press may have to wait.
const completeTime = 2 * time.Second

// completeInstances offers the ids of instances, and of tasks, to the shell.
// With single only the first argument is one. What goes wrong only means that
// nothing is offered: a completion has nowhere to complain.
func (e *Env) completeInstances(single, tasks bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		none := cobra.ShellCompDirectiveNoFileComp
		if single && len(args) > 0 {
			return nil, none
		}
		s, err := e.settings()
		if err != nil {
			return nil, none
		}
		if _, err := os.Stat(s.LeaseDBPath); err != nil {
			return nil, none
		}
		ctx, cancel := context.WithTimeout(context.Background(), completeTime)
		defer cancel()
		svc, err := e.OpenService(ctx, s, slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, none
		}
		defer svc.Close()
		var out []string
		if list, err := svc.ListInstances(ctx, sandbox.ListInstancesRequest{IncludeExpired: tasks}); err == nil {
			for _, in := range list.Instances {
				if !slices.Contains(args, in.InstanceID) {
					out = append(out, in.InstanceID+"\t"+ui.Clean(in.Status+" "+in.WorkspaceRoot))
				}
			}
		}
		if tasks {
			if list, err := svc.ListTasks(ctx, sandbox.ListTasksRequest{Kind: "all"}); err == nil {
				for _, t := range list.Tasks {
					out = append(out, t.TaskID+"\t"+ui.Clean(t.Status+" "+ui.Cut(t.Command, 60)))
				}
			}
		}
		return out, none
	}
}
