package cli

import (
	"context"
	"fmt"
	"sync"

	"github.com/spf13/cobra"

	"sandboxforge/internal/cli/ui"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/sandbox"
)

// destroyOutcome is one line of `destroy --json`.
type destroyOutcome struct {
	InstanceID string     `json:"instance_id"`
	Status     string     `json:"status"` // destroyed or failed
	Error      *errorJSON `json:"error,omitempty"`
	err        error
}

func destroyCommand(env *Env) *cobra.Command {
	var force, all, asJSON bool
	cmd := &cobra.Command{
		Use:     "destroy INSTANCE...",
		Aliases: []string{"rm"},
		Short:   "Destroy instances",
		Long: `Destroy instances: their tasks end, their VMs are taken down, their disks are
removed. What was not copied out is gone. An instance that has ended already
counts as destroyed. A unique beginning of an id is enough.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if all {
				return noArgs(cmd, args)
			}
			return atLeast(1)(cmd, args)
		},
		ValidArgsFunction: env.completeInstances(false, false),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			return env.withService(ctx, func(ctx context.Context, svc Service) error {
				ids, err := destroyTargets(ctx, svc, args, all)
				if err != nil {
					return err
				}
				progress := ui.NewProgress(env.Stderr, ui.ProgressOptions{})
				defer progress.Close()
				ctx = sandbox.WithProgress(ctx, func(p sandbox.Progress) { progress.Update(p.Stage, p.Message) })
				outcomes := destroyAll(ctx, svc, ids, force, func(o destroyOutcome) {
					if o.err == nil && !asJSON {
						progress.Print("destroyed " + o.InstanceID)
					}
				})
				progress.Close()
				if asJSON {
					if err := writeJSON(env.Stdout, struct {
						Instances []destroyOutcome `json:"instances"`
					}{outcomes}); err != nil {
						return err
					}
				}
				var failed error
				for _, o := range outcomes {
					if o.err == nil {
						continue
					}
					if failed != nil && !asJSON {
						printError(env.Stderr, failed, false)
					}
					failed = o.err
				}
				return failed
			})
		}),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "kill the VM at once instead of letting the guest shut down")
	cmd.Flags().BoolVar(&all, "all", false, "every instance of this user, also of other sessions, and the pool's VMs")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// destroyTargets resolves every reference before anything is destroyed.
func destroyTargets(ctx context.Context, svc Service, refs []string, all bool) ([]string, error) {
	list, err := svc.ListInstances(ctx, sandbox.ListInstancesRequest{IncludeExpired: !all, IncludeInternal: true})
	if err != nil {
		return nil, err
	}
	ids := []string{}
	if all {
		for _, in := range list.Instances {
			ids = append(ids, in.InstanceID)
		}
		return ids, nil
	}
	seen := map[string]bool{}
	for _, ref := range refs {
		in, err := matchInstance(list.Instances, ref)
		if err != nil {
			return nil, err
		}
		if !seen[in.InstanceID] {
			seen[in.InstanceID] = true
			ids = append(ids, in.InstanceID)
		}
	}
	return ids, nil
}

// destroyAll destroys concurrently: a guest that is slow to shut down delays
// no other. done is called once per instance, never concurrently.
func destroyAll(ctx context.Context, svc Service, ids []string, force bool, done func(destroyOutcome)) []destroyOutcome {
	outcomes := make([]destroyOutcome, len(ids))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, id := range ids {
		wg.Go(func() {
			o := destroyOutcome{InstanceID: id, Status: "destroyed"}
			if _, err := svc.DestroyInstance(ctx, sandbox.DestroyInstanceRequest{InstanceID: id, Force: force}); err != nil {
				f := fault.From(err)
				o.Status, o.err = "failed", fmt.Errorf("%s: %w", id, err)
				o.Error = &errorJSON{f.Code, f.Error(), f.DetailMap()}
			}
			mu.Lock()
			defer mu.Unlock()
			outcomes[i] = o
			done(o)
		})
	}
	wg.Wait()
	return outcomes
}
