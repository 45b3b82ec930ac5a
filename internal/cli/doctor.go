package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"runtime"

	"github.com/spf13/cobra"

	"sandboxforge/internal/cli/ui"
	"sandboxforge/internal/config"
	"sandboxforge/internal/doctor"
	"sandboxforge/internal/image"
	"sandboxforge/internal/sandbox"
)

func doctorCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what works on this host, what is missing, and what mends it",
		Long: `Look at everything that VMs need on this host: the environment, the operator's
configuration, the state directory, memory and disk, each backend with its
accelerator and the evidence for it, guest images, and what earlier runs may
have left behind. Whatever is missing comes with the command that mends it.

Exit code 0 if a VM can be made, else 1. The first run may boot the guest's
kernel for a moment to find out which accelerator really works; the answer is
remembered.`,
		Args: noArgs,
		RunE: interruptible(func(ctx context.Context, _ []string) error {
			progress := ui.NewProgress(env.Stderr, ui.ProgressOptions{})
			defer progress.Close()
			o := env.doctorOptions()
			if ui.IsTerminal(env.Stderr) {
				o.Progress = progress.Update
			}
			r := doctor.Run(ctx, o)
			progress.Close()
			if err := ctx.Err(); err != nil {
				return err
			}
			var err error
			if asJSON {
				err = writeJSON(env.Stdout, r)
			} else {
				err = r.WriteText(env.Stdout)
			}
			if err == nil && !r.OK {
				return exitCode(exitFailed)
			}
			return err
		}),
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func (e *Env) doctorOptions() doctor.Options {
	o := doctor.Options{Version: e.Version, Host: doctor.ThisHost(), ImageBackend: "qemu", BuildTools: image.CheckTools}
	s, err := config.LoadSettings(e.Getenv, runtime.GOOS)
	if err != nil {
		o.SettingsErr = err
		return o
	}
	o.Settings = s
	o.Backends = e.Backends(s)
	o.Images = func() ([]doctor.ImageState, error) { return imageStates(image.Store{Dir: s.ImageDir}) }
	o.Instances = func(ctx context.Context) (*sandbox.ListInstancesResult, error) {
		// A home that never had a lease must not get a database by being
		// looked at.
		if _, err := os.Stat(s.LeaseDBPath); errors.Is(err, fs.ErrNotExist) {
			return &sandbox.ListInstancesResult{}, nil
		}
		svc, err := e.OpenService(ctx, s, e.logger(s))
		if err != nil {
			return nil, err
		}
		defer svc.Close()
		return svc.ListInstances(ctx, sandbox.ListInstancesRequest{IncludeInternal: true})
	}
	return o
}

func imageStates(store image.Store) ([]doctor.ImageState, error) {
	images, err := store.List()
	if err != nil {
		return nil, err
	}
	var states []doctor.ImageState
	for _, name := range image.Names() {
		s := doctor.ImageState{Name: name, Default: name == image.DefaultName}
		for _, img := range images {
			if img.Name == name && img.Arch == runtime.GOARCH {
				s.Built = true
				s.Current = s.Current || isCurrent(img)
			}
		}
		states = append(states, s)
	}
	return states, nil
}
