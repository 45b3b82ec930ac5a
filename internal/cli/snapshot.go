package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandboxforge/internal/cli/ui"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

func snapshotCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "snapshot",
		Aliases: []string{"snapshots"},
		Short:   "List and remove the saved states of instances",
		Long: `A snapshot is the whole state of an instance at one moment, memory included, in
which others can begin. Agents make them with snapshot_instance; they outlive
their source and stay until they are removed. A fork is the common state of the
children of fork_instance, and goes with the last of them. What both take on the
disk is bounded by SANDBOX_SNAPSHOT_CAP_GIB.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(snapshotListCommand(env), snapshotRmCommand(env))
	return cmd
}

func snapshotListCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the snapshots there are, the newest first",
		Args:    noArgs,
		RunE: interruptible(func(ctx context.Context, _ []string) error {
			return env.withService(ctx, func(ctx context.Context, svc Service) error {
				list, err := svc.ListSnapshots(ctx, sandbox.ListSnapshotsRequest{})
				if err != nil {
					return err
				}
				if asJSON {
					return writeJSON(env.Stdout, list)
				}
				if len(list.Snapshots) == 0 {
					fmt.Fprintln(env.Stderr, "no snapshots")
					return nil
				}
				t := ui.NewTable("SNAPSHOT", "KIND", "STATUS", "NAME", "SOURCE", "AGE", "MEMORY", "DISK", "IN USE")
				for _, s := range list.Snapshots {
					t.Row(s.SnapshotID, s.Kind, s.Status, ui.Cut(s.Name, 30), s.InstanceID, age(s.CreatedAt, time.Now()),
						ui.Bytes(s.MemoryBytes), ui.Bytes(s.DiskBytes), fmt.Sprint(len(s.Children)))
				}
				if _, err = t.WriteTo(env.Stdout); err == nil {
					_, err = fmt.Fprintf(env.Stdout, "%s of %s in use\n", ui.Bytes(list.TotalBytes), ui.Bytes(list.CapBytes))
				}
				return err
			})
		}),
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// snapshotOutcome is one line of `snapshot rm --json`.
type snapshotOutcome struct {
	SnapshotID string     `json:"snapshot_id"`
	Status     string     `json:"status"` // deleted or failed
	Error      *errorJSON `json:"error,omitempty"`
}

func snapshotRmCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "rm SNAPSHOT...",
		Aliases: []string{"remove"},
		Short:   "Remove snapshots",
		Long: `Remove snapshots, named by their ids or unique beginnings of them. One in which
an instance began that still exists stays.`,
		Args: atLeast(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			return env.withService(ctx, func(ctx context.Context, svc Service) error {
				list, err := svc.ListSnapshots(ctx, sandbox.ListSnapshotsRequest{})
				if err != nil {
					return err
				}
				ids := make([]string, len(args))
				for i, ref := range args {
					if ids[i], err = matchSnapshot(list.Snapshots, ref); err != nil {
						return err
					}
				}
				outcomes := []snapshotOutcome{}
				var failed []error
				for _, id := range ids {
					o := snapshotOutcome{SnapshotID: id, Status: "deleted"}
					if _, err := svc.DeleteSnapshot(ctx, sandbox.DeleteSnapshotRequest{SnapshotID: id}); err != nil {
						f := fault.From(err)
						o.Status, o.Error = "failed", &errorJSON{f.Code, f.Error(), f.DetailMap()}
						failed = append(failed, err)
					} else if !asJSON {
						fmt.Fprintf(env.Stdout, "removed %s\n", id)
					}
					outcomes = append(outcomes, o)
				}
				if asJSON {
					if err := writeJSON(env.Stdout, struct {
						Snapshots []snapshotOutcome `json:"snapshots"`
					}{outcomes}); err != nil {
						return err
					}
				}
				return errors.Join(failed...)
			})
		}),
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

// matchSnapshot finds a snapshot by its id or a unique beginning of it, with or
// without snap_.
func matchSnapshot(all []sandbox.Snapshot, ref string) (string, error) {
	hex := strings.TrimPrefix(ref, "snap_")
	var found []string
	for _, s := range all {
		if s.SnapshotID == ref {
			return ref, nil
		}
		if hex != "" && strings.HasPrefix(strings.TrimPrefix(s.SnapshotID, "snap_"), hex) {
			found = append(found, s.SnapshotID)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", fault.New(fault.SnapshotNotFound, "no snapshot %q", ref).
			Next("run `sandboxforge snapshot list` to see the snapshots there are")
	}
	return "", fault.New(fault.InvalidArgument, "%q could be %s", ref, strings.Join(found, " or ")).
		Because("several snapshots begin like that").Next("give more of the id").With("candidates", found)
}
