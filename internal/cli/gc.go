package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"sandboxforge/internal/cli/ui"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

func gcCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Reconcile the lease database with the VMs there are and remove what is dead",
		Long: `Compare the lease database with the VMs, supervisors and files on this host,
in both directions: expired leases end, VMs that died are recorded, VMs and
files that belong to no lease are removed. A live instance is never touched. A
server does the same when it starts and from time to time.`,
		Args: noArgs,
		RunE: interruptible(func(ctx context.Context, _ []string) error {
			return env.withService(ctx, func(ctx context.Context, svc Service) error {
				progress := ui.NewProgress(env.Stderr, ui.ProgressOptions{})
				defer progress.Close()
				ctx = sandbox.WithProgress(ctx, func(p sandbox.Progress) { progress.Update(p.Stage, p.Message) })
				r, err := svc.GC(ctx)
				progress.Close()
				if err != nil {
					return err
				}
				if asJSON {
					if err := writeJSON(env.Stdout, r); err != nil {
						return err
					}
				} else {
					printGC(env.Stdout, r)
				}
				if len(r.Failures) > 0 {
					return fault.New(fault.BackendCommandFailed, "%s could not be cleaned up", count(len(r.Failures), "thing")).
						Because("%s", r.Failures[0].Reason).
						Next("mend what the reasons name and run `sandboxforge gc` again")
				}
				return nil
			})
		}),
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func printGC(w io.Writer, r *sandbox.GCResult) {
	t := ui.NewTable("ACTION", "INSTANCE", "VM", "REASON")
	for _, a := range r.Actions {
		t.Row(a.Action, a.InstanceID, a.Name, a.Reason)
	}
	for _, a := range r.Failures {
		t.Row("failed: "+a.Action, a.InstanceID, a.Name, a.Reason)
	}
	if t.Len() > 0 {
		t.WriteTo(w)
	}
	instances, vms := count(r.InstancesChecked, "instance"), count(r.VMsChecked, "VM")
	if r.SnapshotsChecked > 0 {
		fmt.Fprintf(w, "checked %s, %s and %s", instances, vms, count(r.SnapshotsChecked, "snapshot"))
	} else {
		fmt.Fprintf(w, "checked %s and %s", instances, vms)
	}
	if t.Len() == 0 {
		fmt.Fprint(w, ": nothing to do")
	}
	if r.ReclaimedBytes > 0 {
		fmt.Fprintf(w, "; %s of disk space came back", ui.Bytes(r.ReclaimedBytes))
	}
	if r.SnapshotBytes > 0 {
		fmt.Fprintf(w, "; snapshots hold %s", ui.Bytes(r.SnapshotBytes))
	}
	fmt.Fprintln(w)
}

// count says "1 thing", "2 things".
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
