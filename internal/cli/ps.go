package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"sandboxforge/internal/cli/ui"
	"sandboxforge/internal/sandbox"
)

func psCommand(env *Env) *cobra.Command {
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:     "ps",
		Aliases: []string{"list"},
		Short:   "List instances",
		Long: `List the instances that may have a VM, the newest first; with --all also those
that have ended. VMs of SandboxForge's own are listed too: those of the pool,
which wait to become an instance, and those that are made into a template.
MEMORY and DISK are what each VM costs the host now, without its share of what
it has in common with others.`,
		Args: noArgs,
		RunE: interruptible(func(ctx context.Context, _ []string) error {
			return env.withService(ctx, func(ctx context.Context, svc Service) error {
				list, err := svc.ListInstances(ctx, sandbox.ListInstancesRequest{IncludeExpired: all, IncludeInternal: true})
				if err != nil {
					return err
				}
				if asJSON {
					return writeJSON(env.Stdout, list)
				}
				printInstances(env.Stdout, env.Stderr, list, time.Now())
				return nil
			})
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also instances that were destroyed or have expired")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func printInstances(out, notes io.Writer, list *sandbox.ListInstancesResult, now time.Time) {
	t := ui.NewTable("INSTANCE", "STATUS", "BACKEND", "AGE", "EXPIRES", "MEMORY", "DISK", "WORKSPACE")
	for _, in := range list.Instances {
		backend := in.BackendName
		if in.Accelerator != "" {
			backend += "/" + in.Accelerator
		}
		t.Row(in.InstanceID, statusText(in), backend, age(in.CreatedAt, now), expiry(in, now), memory(in), disk(in), in.WorkspaceRoot)
	}
	if t.Len() == 0 {
		fmt.Fprintln(notes, "no instances; agents make them over MCP, with create_instance")
	} else {
		t.WriteTo(out)
	}
	if list.SnapshotCount > 0 {
		fmt.Fprintf(notes, "note: %s of disk are held by %s (sandboxforge snapshot list)\n", ui.Bytes(list.SnapshotBytes), count(list.SnapshotCount, "snapshot"))
	}
	if list.TemplateCount > 0 {
		fmt.Fprintf(notes, "note: %s of disk are held by %s, shared (sandboxforge template list)\n", ui.Bytes(list.TemplateBytes), count(list.TemplateCount, "template"))
	}
	if list.BackendError != "" {
		fmt.Fprintf(notes, "note: no VM can be made now: %s\n", ui.Clean(list.BackendError))
	}
	if list.ReconciliationError != "" {
		fmt.Fprintf(notes, "note: the state shown may be out of date: %s\n", ui.Clean(list.ReconciliationError))
	}
}

// statusText is the lease's status, with what the VM itself says where that
// is something else, and what it is for where that is not an instance.
func statusText(in sandbox.Instance) string {
	s := in.Status
	if in.Kind != "" && in.Kind != "instance" {
		s = in.Kind + ", " + s
	}
	if in.ParentInstance != "" {
		s += ", from " + in.ParentInstance
	}
	if ended(in) {
		if in.EndReason != "" && in.EndReason != in.Status {
			s += " (" + in.EndReason + ")"
		}
		return s
	}
	if in.ReconciliationDrift != nil && *in.ReconciliationDrift != "" {
		s += " (" + *in.ReconciliationDrift + ")"
	}
	return s
}

// memory is what the VM really costs, not what it was promised.
func memory(in sandbox.Instance) string {
	if ended(in) || in.MemoryPSSBytes == 0 {
		return ""
	}
	return ui.Bytes(in.MemoryPSSBytes)
}

func disk(in sandbox.Instance) string {
	if ended(in) || in.DiskUsedBytes == 0 {
		return ""
	}
	return ui.Bytes(in.DiskUsedBytes)
}

func age(at string, now time.Time) string {
	t, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		return at
	}
	return ui.Age(max(0, now.Sub(t)))
}

func expiry(in sandbox.Instance, now time.Time) string {
	t, err := time.Parse(time.RFC3339Nano, in.ExpiresAt)
	if err != nil || ended(in) {
		return ""
	}
	if left := t.Sub(now); left > 0 {
		return "in " + ui.Age(left)
	}
	return "now"
}
