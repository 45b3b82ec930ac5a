package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandboxforge/internal/cli/ui"
	"sandboxforge/internal/sandbox"
)

func templateCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "template",
		Short: "List and remove the templates that new VMs begin in",
		Long: `A template is a VM that has booted and come to rest, saved with its memory: new
VMs begin in it instead of booting. There is one for each kind of VM (image,
processors, memory, and disk, where it is below the default), made when the first
VM of its kind is asked for, or ahead by ` + "`sandboxforge image warm`" + `, and shared by
all servers that share the image directory. What templates take on the disk is
bounded by SANDBOX_TEMPLATE_CAP_GIB: the least recently used make room.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(templateListCommand(env), templateRmCommand(env))
	return cmd
}

func templateListCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the templates there are, the most recently used first",
		Args:    noArgs,
		RunE: interruptible(func(ctx context.Context, _ []string) error {
			return env.withService(ctx, func(ctx context.Context, svc Service) error {
				list, err := svc.ListTemplates(ctx)
				if err != nil {
					return err
				}
				if asJSON {
					return writeJSON(env.Stdout, list)
				}
				if len(list.Templates) == 0 {
					fmt.Fprintln(env.Stderr, "no templates; the first VM of its kind makes one, or `sandboxforge image warm`")
					return nil
				}
				now := time.Now()
				t := ui.NewTable("KEY", "IMAGE", "CPUS", "MEMORY", "VM DISK", "AGE", "USED", "DISK", "IN USE")
				for _, i := range list.Templates {
					t.Row(templateRow(i, now)...)
				}
				_, err = t.WriteTo(env.Stdout)
				return err
			})
		}),
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func templateRow(i sandbox.TemplateInfo, now time.Time) []string {
	ago := func(t time.Time) string { return ui.Age(max(0, now.Sub(t))) }
	image := i.Image
	if len(i.Services) > 0 {
		image += " + " + strings.Join(i.Services, ", ")
	}
	disk := ""
	if i.DiskSize > 0 {
		disk = ui.Bytes(i.DiskSize)
	}
	row := []string{shortKey(i.Key), image, fmt.Sprint(i.CPUs), ui.Bytes(i.MemoryMiB << 20), disk, ago(i.Created), ago(i.LastUsed) + " ago", ui.Bytes(i.Bytes), fmt.Sprint(i.InUse)}
	if i.Retired {
		// Nothing is known of it but that VMs still need its files.
		row[1], row[2], row[3], row[4], row[6] = "(retired)", "", "", "", ""
	}
	return row
}

func shortKey(key string) string { return key[:min(len(key), 16)] }

func templateRmCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "rm KEY...",
		Aliases: []string{"remove"},
		Short:   "Remove templates",
		Long:    "Remove templates, named by the beginning of their keys. One that a VM uses stays.",
		Args:    atLeast(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			return env.withService(ctx, func(ctx context.Context, svc Service) error {
				removed := []sandbox.TemplateInfo{}
				for _, a := range args {
					i, err := svc.RemoveTemplate(ctx, a)
					if err != nil {
						return err
					}
					removed = append(removed, *i)
					if !asJSON {
						fmt.Fprintf(env.Stdout, "removed template %s of image %s\n", shortKey(i.Key), i.Image)
					}
				}
				if asJSON {
					return writeJSON(env.Stdout, struct {
						Removed []sandbox.TemplateInfo `json:"removed"`
					}{removed})
				}
				return nil
			})
		}),
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func imageWarmCommand(env *Env) *cobra.Command {
	var asJSON bool
	var r sandbox.WarmTemplateRequest
	cmd := &cobra.Command{
		Use:   "warm",
		Short: "Make the template that VMs of an image begin in, or find that it is there",
		Long: `Boot a VM, let it come to rest and save it as the template in which later VMs of
its kind begin. Without this the first VM of its kind makes it, and takes as long
as a boot. Image, processors, memory and disk are the operator's defaults unless
given; a VM of other ones has a template of its own.

Where the configuration (see --workspace) has services, MySQL for example, the
template in which they run is made too: the first run fetches and sets up their
images, and later VMs have them answering when they are created.`,
		Args: noArgs,
		RunE: interruptible(func(ctx context.Context, _ []string) error {
			if r.WorkspaceRoot != "" {
				var err error
				if r.WorkspaceRoot, err = filepath.Abs(r.WorkspaceRoot); err != nil {
					return err
				}
			}
			return env.withService(ctx, func(ctx context.Context, svc Service) error {
				progress := ui.NewProgress(env.Stderr, ui.ProgressOptions{})
				res, err := svc.WarmTemplate(sandbox.WithProgress(ctx, func(p sandbox.Progress) { progress.Update(p.Stage, p.Message) }), r)
				progress.Close()
				if err != nil {
					return err
				}
				if asJSON {
					return writeJSON(env.Stdout, res)
				}
				t := res.Template
				what := fmt.Sprintf("template %s of image %s (%s, %s)", shortKey(t.Key), t.Image, count(t.CPUs, "CPU"), ui.Bytes(t.MemoryMiB<<20))
				if len(t.Services) > 0 {
					what += " with " + strings.Join(t.Services, ", ") + " running"
				}
				if res.Made {
					fmt.Fprintf(env.Stdout, "made %s in %s: %s on the disk\n", what, ui.Duration(time.Duration(res.DurationMS)*time.Millisecond), ui.Bytes(t.Bytes))
				} else {
					fmt.Fprintf(env.Stdout, "%s is there already\n", what)
				}
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&r.WorkspaceRoot, "workspace", "", "take what is not given from the configuration of this workspace")
	cmd.Flags().StringVar(&r.Image, "image", "", "name of a built image")
	cmd.Flags().IntVar(&r.CPUs, "cpus", 0, "processors of the VM")
	cmd.Flags().Float64Var(&r.MemoryGiB, "memory-gib", 0, "memory of the VM in GiB")
	cmd.Flags().Float64Var(&r.DiskGiB, "disk-gib", 0, "disk of the VM in GiB: those below the default have templates of their own")
	jsonFlag(cmd, &asJSON)
	return cmd
}
