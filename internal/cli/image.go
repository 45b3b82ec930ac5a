package cli

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandboxforge/internal/cli/ui"
	"sandboxforge/internal/config"
	"sandboxforge/internal/fault"
	"sandboxforge/internal/host"
	"sandboxforge/internal/image"
	"sandboxforge/internal/sandbox"
)

// imageInfo is an image in `image list --json` and, with Manifest, in
// `image inspect --json`.
type imageInfo struct {
	Name    string    `json:"name"`
	Arch    string    `json:"arch"`
	Digest  string    `json:"digest"`
	Created time.Time `json:"created"`
	Suite   string    `json:"suite"`
	Kernel  string    `json:"kernel_release"`
	// Current: this version's recipe makes exactly this image.
	Current   bool            `json:"current"`
	DiskBytes int64           `json:"disk_bytes"`
	Dir       string          `json:"dir"`
	Manifest  *image.Manifest `json:"manifest,omitempty"`
	Verified  *bool           `json:"verified,omitempty"`
}

func imageCommand(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Build, warm, list, inspect and remove guest images",
		Long: `Guest images are what VMs of the qemu backend boot: a kernel, an initrd and a
root file system, made from a distribution's packages by a recipe. There are two
recipes: default (systemd, Docker, git) and minimal (kernel and agent only, for
tests). An image is built once and cached by the digest of its recipe.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(imageBuildCommand(env), imageWarmCommand(env), imageListCommand(env), imageInspectCommand(env), imageRmCommand(env))
	return cmd
}

func (e *Env) images() (image.Store, error) {
	s, err := e.settings()
	if err != nil {
		return image.Store{}, err
	}
	return image.Store{Dir: s.ImageDir}, nil
}

func imageBuildCommand(env *Env) *cobra.Command {
	var (
		asJSON bool
		loads  []string
		as     string
	)
	cmd := &cobra.Command{
		Use:   "build [default|minimal]",
		Short: "Build a guest image, or find that it is built already",
		Long: `Build a guest image, or find that it is built already.

With --load the image brings container images along: they are in Docker when a
VM of it starts, so that none has to be fetched. An archive is what docker save
writes, or a tar of an OCI layout, compressed or not:

  docker save mysql:8.0 -o mysql.tar
  sandboxforge image build --load mysql:8.0=mysql.tar --as with-mysql

VMs use the image if vm.image names it. Without --as it is called default, and
is the image that VMs use unless told otherwise, until the next one is built.`,
		ValidArgs: image.Names(),
		Args:      atMost(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			store, err := env.images()
			if err != nil {
				return err
			}
			name := ""
			if len(args) == 1 {
				name = args[0]
			}
			recipe, err := image.ByName(name, runtime.GOARCH)
			if err != nil {
				return usage(err)
			}
			list, err := parseLoads(loads)
			if err != nil {
				return usage(err)
			}
			began := time.Now()
			if recipe, err = recipe.With(ctx, as, list); fault.Is(err, fault.InvalidArgument) {
				return usage(err)
			} else if err != nil {
				return err
			}
			progress := ui.NewProgress(env.Stderr, ui.ProgressOptions{})
			img, cached, err := buildImage(ctx, store, recipe, progress.Update)
			progress.Close()
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(env.Stdout, struct {
					imageInfo
					Cached     bool  `json:"cached"`
					DurationMS int64 `json:"duration_ms"`
				}{infoOf(img, true), cached, time.Since(began).Milliseconds()})
			}
			if cached {
				fmt.Fprintf(env.Stdout, "image %s is built already: %s\n", img.Name, img.Dir)
			} else {
				fmt.Fprintf(env.Stdout, "built image %s in %s: %s\n", img.Name, ui.Duration(time.Since(began)), img.Dir)
			}
			return nil
		}),
	}
	cmd.Flags().StringArrayVar(&loads, "load", nil, "`REFERENCE=ARCHIVE`: a container image that is in Docker from the start; repeatable")
	cmd.Flags().StringVar(&as, "as", "", "`NAME` of the image (default: the recipe's)")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// parseLoads reads the values of --load.
func parseLoads(values []string) ([]image.Load, error) {
	var list []image.Load
	for _, v := range values {
		ref, file, ok := strings.Cut(v, "=")
		if !ok || file == "" || !config.IsImageReference(ref) {
			return nil, fault.New(fault.InvalidArgument, "--load %q is not REFERENCE=ARCHIVE", v).
				Next("write it like this: --load mysql:8.0=mysql.tar")
		}
		path, err := filepath.Abs(file)
		if err != nil {
			return nil, err
		}
		list = append(list, image.Load{Reference: ref, Path: path})
	}
	return list, nil
}

// buildImage returns the image of a recipe, and whether it was there already.
func buildImage(ctx context.Context, store image.Store, recipe image.Recipe, progress func(stage, text string)) (img *image.Image, cached bool, err error) {
	if img, err := store.Lookup(recipe); err == nil {
		return img, true, nil
	}
	img, err = store.Build(ctx, recipe, image.BuildOptions{Progress: func(p image.Progress) {
		text := p.Message
		if p.Fraction >= 0 {
			text = fmt.Sprintf("%3.0f%% %s", 100*p.Fraction, text)
		}
		progress(p.Stage, text)
	}})
	return img, false, err
}

func imageListCommand(env *Env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the guest images there are, the newest first",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			store, err := env.images()
			if err != nil {
				return err
			}
			images, err := store.List()
			if err != nil {
				return err
			}
			infos := []imageInfo{}
			for _, img := range images {
				infos = append(infos, infoOf(img, isCurrent(img)))
			}
			if asJSON {
				return writeJSON(env.Stdout, struct {
					Dir    string      `json:"dir"`
					Images []imageInfo `json:"images"`
				}{store.Dir, infos})
			}
			if len(infos) == 0 {
				fmt.Fprintln(env.Stderr, "no images; build one with `sandboxforge image build`")
				return nil
			}
			t := ui.NewTable("NAME", "ARCH", "DIGEST", "AGE", "DISK", "KERNEL", "CURRENT")
			for _, i := range infos {
				current := "yes"
				if !i.Current {
					current = "no"
				}
				t.Row(i.Name, i.Arch, short(i.Digest), ui.Age(time.Since(i.Created)), ui.Bytes(i.DiskBytes), i.Kernel, current)
			}
			_, err = t.WriteTo(env.Stdout)
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func imageInspectCommand(env *Env) *cobra.Command {
	var asJSON, verify bool
	cmd := &cobra.Command{
		Use:   "inspect [NAME[@DIGEST]]",
		Short: "Show what an image is made of",
		Args:  atMost(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			store, err := env.images()
			if err != nil {
				return err
			}
			img, err := findImage(store, args)
			if err != nil {
				return err
			}
			info := infoOf(img, isCurrent(img))
			info.Manifest = &img.Manifest
			if verify {
				progress := ui.NewProgress(env.Stderr, ui.ProgressOptions{})
				progress.Update("verify", "reading "+img.Dir)
				err := img.Verify(ctx)
				progress.Close()
				if err != nil {
					return err
				}
				yes := true
				info.Verified = &yes
			}
			if asJSON {
				return writeJSON(env.Stdout, info)
			}
			printImage(env, img, info)
			return nil
		}),
	}
	cmd.Flags().BoolVar(&verify, "verify", false, "also read all of its files and compare their digests")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func printImage(env *Env, img *image.Image, info imageInfo) {
	m := img.Manifest
	for _, f := range [][2]string{
		{"name", info.Name + " (" + info.Arch + ", " + info.Suite + ")"},
		{"digest", info.Digest},
		{"created", info.Created.Format(time.RFC3339)},
		{"current", fmt.Sprint(info.Current)},
		{"disk", ui.Bytes(info.DiskBytes)},
		{"directory", info.Dir},
		{"kernel", m.KernelRelease + ", " + ui.Bytes(m.Kernel.Size) + " in " + m.Kernel.File},
		{"initrd", ui.Bytes(m.Initrd.Size) + " in " + m.Initrd.File},
		{"root", ui.Bytes(m.Root.Size) + " in " + m.Root.File},
		{"agent", "sha256 " + short(m.AgentSHA256)},
		{"command line", m.Cmdline},
		{"packages", fmt.Sprint(len(m.Packages))},
	} {
		fmt.Fprintf(env.Stdout, "%-13s %s\n", f[0], ui.Clean(f[1]))
	}
	for _, c := range m.ContainerImages {
		fmt.Fprintf(env.Stdout, "%-13s %s %s\n", "loaded", ui.Clean(c.Reference), short(strings.TrimPrefix(c.ID, "sha256:")))
	}
	if info.Verified != nil {
		fmt.Fprintf(env.Stdout, "%-13s every file is what was built\n", "verified")
	}
}

func imageRmCommand(env *Env) *cobra.Command {
	var asJSON, force bool
	cmd := &cobra.Command{
		Use:     "rm NAME[@DIGEST]...",
		Aliases: []string{"remove"},
		Short:   "Remove guest images",
		Long:    "Remove guest images, and the templates made of them. An image that a VM or a\nsnapshot uses stays, unless --force is given.",
		Args:    atLeast(1),
		RunE: interruptible(func(ctx context.Context, args []string) error {
			store, err := env.images()
			if err != nil {
				return err
			}
			var images []*image.Image
			for _, a := range args {
				img, err := findImage(store, []string{a})
				if err != nil {
					return err
				}
				images = append(images, img)
			}
			inUse, err := env.imageUsers(ctx, force)
			if err != nil {
				return err
			}
			removed := []imageInfo{}
			for _, img := range images {
				info := infoOf(img, isCurrent(img))
				if err := store.Remove(ctx, img, inUse); err != nil {
					return err
				}
				removed = append(removed, info)
				if !asJSON {
					fmt.Fprintf(env.Stdout, "removed %s %s\n", info.Name, short(info.Digest))
				}
			}
			// Their disks lie on the images'.
			templates := []sandbox.TemplateInfo{}
			err = env.withService(ctx, func(ctx context.Context, svc Service) error {
				templates, err = svc.RemoveUnfitTemplates(ctx)
				return err
			})
			if err != nil {
				return err
			}
			if !asJSON {
				for _, t := range templates {
					fmt.Fprintf(env.Stdout, "removed template %s of image %s\n", shortKey(t.Key), t.Image)
				}
			}
			if asJSON {
				return writeJSON(env.Stdout, struct {
					Removed   []imageInfo            `json:"removed"`
					Templates []sandbox.TemplateInfo `json:"removed_templates"`
				}{removed, templates})
			}
			return nil
		}),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also if instances or snapshots may use it: they break")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// imageUsers answers who uses an image. Which image a VM boots is the
// backend's knowledge, so any live instance counts, and any snapshot: their
// disks are overlays over the image and are lost with it.
func (e *Env) imageUsers(ctx context.Context, force bool) (func(*image.Image) (string, error), error) {
	if force {
		return nil, nil
	}
	var by string
	err := e.withService(ctx, func(ctx context.Context, svc Service) error {
		list, err := svc.ListInstances(ctx, sandbox.ListInstancesRequest{IncludeInternal: true})
		if err == nil && len(list.Instances) > 0 {
			by = list.Instances[0].InstanceID
		}
		if err != nil || by != "" {
			return err
		}
		saved, err := svc.ListSnapshots(ctx, sandbox.ListSnapshotsRequest{})
		if err == nil && len(saved.Snapshots) > 0 {
			by = saved.Snapshots[0].SnapshotID
		}
		return err
	})
	return func(*image.Image) (string, error) { return by, nil }, err
}

func findImage(store image.Store, args []string) (*image.Image, error) {
	name := ""
	if len(args) > 0 {
		name = args[0]
	}
	return store.Find(name)
}

// isCurrent reports whether this version's recipe makes exactly this image.
func isCurrent(img *image.Image) bool {
	m := img.Manifest
	r, err := image.ByName(cmp.Or(m.Recipe, img.Name), img.Arch)
	if err != nil {
		return false
	}
	var loads []image.Load
	for _, c := range m.ContainerImages {
		loads = append(loads, c.Load)
	}
	if r, err = r.With(context.Background(), img.Name, loads); err != nil {
		return false
	}
	digest, err := r.Digest()
	return err == nil && digest == img.Digest
}

func infoOf(img *image.Image, current bool) imageInfo {
	return imageInfo{
		Name: img.Name, Arch: img.Arch, Digest: img.Digest, Created: img.Manifest.Created, Suite: img.Manifest.Suite,
		Kernel: img.Manifest.KernelRelease, Current: current, DiskBytes: host.TreeAllocated(img.Dir), Dir: img.Dir,
	}
}

func short(digest string) string {
	if len(digest) > 12 {
		return digest[:12]
	}
	return digest
}
